package commands_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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

// TestStopBeforeReady: who is stopped too early says so, in the status too.
func TestStopBeforeReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := new(bytes.Buffer)
	status := commands.Run(ctx, commands.Process{Args: []string{"up", "--engine=simulated", "--model=../../../../models/fable"}, Stdout: new(bytes.Buffer), Stderr: errs})
	if status != 130 || errs.String() != "tandem: interrupted before it was ready\n" {
		t.Errorf("status %d, %q", status, errs)
	}
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
		"router":     {"router    router-", "control   127.0.0.1:", "http      http://127.0.0.1:", "/v1 (OpenAI's API)\n", "waiting   the router is connected to no worker that decodes: "},
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

// Who gave 'up' an etcd that is not there is told that it needs none.
func TestUpWithoutItsEtcd(t *testing.T) {
	got := run(t.Context(), "", nil, "up", "--etcd=http://127.0.0.1:1", "--start-timeout=500ms", "--engine=simulated", "--model=../../../../models/fable",
		"--listen=127.0.0.1:0", "--http=", "--control=", "--log-level=error")
	checkFailure(t, got, 1, "correct --etcd, or leave --etcd out: 'tandem up' then runs an etcd of its own")
}

// A disk that does not answer ends a start all the same: here nobody writes to the database that is
// read.
func TestUpOnASlowDisk(t *testing.T) {
	dir := t.TempDir()
	database := filepath.Join(dir, "etcd", "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(database), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(database, 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t.Context(), "", nil, "up", "--data-dir="+dir, "--start-timeout=1ms", "--engine=simulated", "--model=../../../../models/fable",
		"--listen=127.0.0.1:0", "--http=", "--metrics=", "--control=")
	checkFailure(t, got, 1, "tandem: --start-timeout: the embedded etcd is not ready after 1ms; the disk of "+dir+" may be very slow: pass")
	writer, err := os.OpenFile(database, os.O_WRONLY, 0) // the reader goes on
	if err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
}

// TestLogPipeThatCloses runs a mesh, in a process of its own, whose output nobody reads any more, as
// after `| grep -m1 ready`: it goes on, and drains when it is told to.
func TestLogPipeThatCloses(t *testing.T) {
	const inside = "LOG_PIPE_CLOSED"
	if os.Getenv(inside) != "" {
		ctx, cancel := context.WithCancel(t.Context())
		out := &readyWriter{ready: func() {
			if _, err := os.Stdout.WriteString("ready\n"); errors.Is(err, syscall.EPIPE) {
				cancel()
			}
		}}
		os.Exit(commands.Run(ctx, commands.Process{Stdout: out, Stderr: os.Stderr, Args: []string{
			"up", "--engine=simulated", "--model=../../../../models/fable", "--listen=127.0.0.1:0", "--http=", "--metrics=", "--control=", "--log-level=debug",
		}}))
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLogPipeThatCloses$")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), inside+"=1"), writer, writer
	err = cmd.Run()
	_ = writer.Close()
	if err != nil {
		t.Error(err)
	}
}

// A router without etcd says that it uses its last view, and for what it waits.
func TestPartsAnnounceTheirState(t *testing.T) {
	old := mesh.Part{ID: "r", Advertise: "127.0.0.1:7070", Etcd: []string{"http://e:2379"}, OldView: true, ViewAge: 90 * time.Second}
	waiting := old
	waiting.Unserved = "no prefill worker"
	const view = "etcd      cannot be reached at http://e:2379: using the workers that were there 1m30s ago\n"
	for _, c := range []struct {
		part  mesh.Part
		first bool
		want  string
	}{
		{mesh.Part{Unserved: "no prefill worker"}, false, "waiting   no prefill worker: 'tandem workers' says why\n"},
		{mesh.Part{}, false, "ready\n"},
		{waiting, false, "waiting   no prefill worker: 'tandem workers' says why\n"},
		{waiting, true, "router    r\ngrpc      127.0.0.1:7070\n" + view + "waiting   no prefill worker: 'tandem workers' says why\n"},
		{old, true, "router    r\ngrpc      127.0.0.1:7070\n" + view + "ready\n"},
		{old, false, "ready\n"},
	} {
		if got := commands.AnnouncePart("tandem", "router", c.part, c.first); got != c.want {
			t.Errorf("%+v: %q, want %q", c.part, got, c.want)
		}
	}
}

// Who listens on all interfaces is told so.
func TestUpSaysThatItListensEverywhere(t *testing.T) {
	got := commands.Announce("tandem", mesh.Up{Address: "127.0.0.1:7070", HTTP: "127.0.0.1:8080", Everywhere: map[string]bool{"http": true}})
	for _, want := range []string{"grpc      127.0.0.1:7070\n", "http      http://127.0.0.1:8080/v1 (OpenAI's API; on all interfaces)\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

// Passwords of NATS are not printed.
func TestUpHidesPasswords(t *testing.T) {
	got := commands.Announce("tandem", mesh.Up{NATS: []string{"nats://hans:secret@10.0.0.1:4222", "nats://10.0.0.2:4222"}})
	if want := "nats      nats://xxxxx@10.0.0.1:4222, nats://10.0.0.2:4222\n"; !strings.Contains(got, want) {
		t.Errorf("%q is not in:\n%s", want, got)
	}
}

// Who asks for keys, and has an etcd that asks nobody, is told so.
func TestUpSaysWhoCanMakeKeys(t *testing.T) {
	for _, c := range []struct {
		up   mesh.Up
		said bool
	}{
		{mesh.Up{Auth: true, EmbeddedEtcd: true}, true},
		{mesh.Up{Auth: true, EmbeddedEtcd: true, Certs: "certs"}, false},
		{mesh.Up{Auth: true}, false},
		{mesh.Up{EmbeddedEtcd: true}, false},
	} {
		if got := commands.Announce("tandem", c.up); strings.Contains(got, "so can other users of this machine") != c.said {
			t.Errorf("%+v: %s", c.up, got)
		}
	}
}

// A Ctrl-C that requests outlast says so.
func TestUpSaysWhatItFinishes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs, out := new(bytes.Buffer), new(readyWriter)
	out.ready = func() {
		defer cancel()
		_, rest, _ := strings.Cut(out.text.String(), "grpc      ")
		address, _, _ := strings.Cut(rest, "\n")
		address, _, _ = strings.Cut(address, " ")
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
		stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{
			Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}, MaxTokens: proto.Uint32(300),
		})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Error(err)
		}
	}
	status := commands.Run(ctx, commands.Process{Stdout: out, Stderr: errs, Args: []string{
		"up", "--engine=simulated", "--model=../../../../models/fable", "--listen=127.0.0.1:0", "--http=", "--metrics=", "--control=",
	}})
	if want := "finishing 1 request; Ctrl-C again ends at once\n"; status != 0 || !strings.Contains(errs.String(), want) {
		t.Errorf("status %d, %q lacks %q", status, errs, want)
	}
}

// TestUpOnSockets: what is served on a Unix socket is announced by its address, not by a URL that nothing
// opens.
func TestUpOnSockets(t *testing.T) {
	dir := t.TempDir()
	socket := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	said := untilReady(t, "up", "--engine=simulated", "--model=../../../../models/fable",
		"--listen="+socket("g"), "--control="+socket("c"), "--http="+socket("h"), "--metrics="+socket("m"))
	for _, want := range []string{"\nhttp      " + socket("h") + " (OpenAI's API)\n", "\nmetrics   " + socket("m") + "\n"} {
		if !strings.Contains(said, want) || strings.Contains(said, "\npage ") {
			t.Errorf("want %q, and no page:\n%s", want, said)
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
	for _, want := range []string{" (127.0.0.1:7070 is taken)\n", "/v1 (OpenAI's API; 127.0.0.1:8080 is taken)\n", "/metrics (127.0.0.1:9090 is taken)\n", " (127.0.0.1:7090 is taken)\n", "workers --control 127.0.0.1:"} {
		if !strings.Contains(said, want) {
			t.Errorf("it lacks %q:\n%s", want, said)
		}
	}
}
