package commands_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

// untilReady runs a command that goes on until it is stopped, stops it when it is ready,
// and returns what it printed until then.
func untilReady(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := &readyWriter{ready: cancel}, new(bytes.Buffer)
	if status := commands.Run(ctx, commands.Process{Args: args, Stdout: out, Stderr: errs}); status != 0 || !readyOrWaiting(out.text.Bytes()) {
		t.Fatalf("%v: status %d, %s%s", args, status, out.text.String(), errs)
	}
	return out.text.String()
}

// readyOrWaiting says whether that is what a command has come to, a router without workers
// the latter.
func readyOrWaiting(text []byte) bool {
	return bytes.HasSuffix(text, []byte("\nready\n")) || bytes.Contains(text, []byte("\nwaiting "))
}

// readyWriter calls ready once that was written.
type readyWriter struct {
	text  bytes.Buffer
	ready func()
}

func (w *readyWriter) Write(text []byte) (int, error) {
	if readyOrWaiting(text) {
		defer w.ready()
	}
	return w.text.Write(text)
}

func TestServeSaysWhereItListens(t *testing.T) {
	etcd, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	nats, err := embedded.StartNATS(embedded.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	for target, want := range map[string][]string{
		"kvtransfer": {"kvtransfer kvtransfer-", "grpc      127.0.0.1:", "http      http://127.0.0.1:", "/readyz\n", "metrics   http://127.0.0.1:", "/metrics\n"},
		"router":     {"router    router-", "control   127.0.0.1:", "http      http://127.0.0.1:", "/v1 (OpenAI's API)\n", "waiting   for a decode worker"},
	} {
		args := []string{"serve", "--target=" + target, "--etcd=" + etcd.Endpoint(), "--nats=" + nats.URL(), "--listen=127.0.0.1:0",
			"--http=127.0.0.1:0", "--metrics=127.0.0.1:0"}
		if target == "router" {
			args = append(args, "--control=127.0.0.1:0", "--router-state-dir=off", "--model=../../../../models/fable")
		}
		said := untilReady(t, args...)
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("%s lacks %q:\n%s", target, w, said)
			}
		}
	}
}

// TestUpSaysWhichPortsAreTaken: a second one takes others.
func TestUpSaysWhichPortsAreTaken(t *testing.T) {
	for _, address := range []string{"127.0.0.1:7070", "127.0.0.1:8080", "127.0.0.1:9090", "127.0.0.1:7090"} {
		if listener, err := net.Listen("tcp", address); err == nil { // else somebody else has it
			t.Cleanup(func() { _ = listener.Close() })
		}
	}
	said := untilReady(t, "up", "--engine=simulated", "--model=../../../../models/fable")
	for _, want := range []string{" (127.0.0.1:7070 is taken)\n", "/v1 (OpenAI's API) (127.0.0.1:8080 is taken)\n", "/metrics (127.0.0.1:9090 is taken)\n", " (127.0.0.1:7090 is taken)\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it lacks %q:\n%s", want, said)
		}
	}
}
