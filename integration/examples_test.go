package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/integration/clustertest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// answered is what an example prints of an answer.
var answered = regexp.MustCompile(`(?s)^.+\n\[8 prompt tokens, [1-6]?\d in the answer\]\n$`)

// TestExamples runs each program of examples/ as its page says: it prints an answer and
// what it used, comes back where it is refused at first, and says what is wrong with a
// request.
func TestExamples(t *testing.T) {
	t.Parallel() // much of it is waiting
	root := checkoutRoot(t)
	up := clustertest.Launch(t, "up", clustertest.Build(t).Tandem, "up", "--model", filepath.Join(root, "models", "fable"),
		"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "").AwaitServing(t)
	openai := "OPENAI_BASE_URL=" + refusesFirst(t, address(up.Field(t, "http"))) + "/v1"
	tandem := "TANDEM_ADDR=" + refusesFirstCall(t, up.Field(t, "grpc"))
	for name, c := range map[string]struct {
		needs []string
		where string
		run   []string
	}{
		"Go, OpenAI": {[]string{"go"}, openai, []string{goExample(t, root, "openai")}},
		"Go, gRPC":   {[]string{"go"}, tandem, []string{goExample(t, root, "grpc")}},
		"Python":     {[]string{"python3"}, openai, []string{"python3", "examples/chat.py"}},
		"JavaScript": {[]string{"node"}, openai, []string{"node", "examples/chat.mjs"}},
		"curl":       {[]string{"bash", "curl", "jq"}, openai, []string{"bash", "examples/chat.sh"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, program := range c.needs {
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("%s is not here", program)
				}
			}
			run := func(where, prompt string) (string, error) {
				cmd := exec.CommandContext(t.Context(), c.run[0], append(c.run[1:], prompt)...)
				cmd.Dir, cmd.Env = root, append(clustertest.Environ(), where)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := run(c.where, "Tell me of a king.")
			if err != nil || !answered.MatchString(out) || strings.Contains(out, "the queue is full") {
				t.Errorf("%v: %s", err, out)
			}
			if out, err := run(c.where, strings.Repeat("king ", 4000)); err == nil || !strings.Contains(out, "maximum context length is 2048 tokens") {
				t.Errorf("a prompt over the context: %v: %.300s", err, out)
			}
			if out, err := unread(t, root, c.where, c.run); err != nil || out != "" {
				t.Errorf("nobody reads the answer: %v: %s", err, out)
			}
			variable, _, _ := strings.Cut(c.where, "=")
			nobody := nobodyAt(t)
			if variable == "OPENAI_BASE_URL" {
				nobody = "http://" + nobody + "/v1"
			}
			want := fmt.Sprintf("no answer from %s: start a mesh with 'tandem up', or set %s\n", nobody, variable)
			if out, err := run(variable+"="+nobody, "Hello"); err == nil || out != want {
				t.Errorf("without a mesh: %v: %q, want %q", err, out, want)
			}
		})
	}
}

// TestExamplesOfForms runs the programs of examples/ that ask for answers of a form: what they print
// is what they read of it.
func TestExamplesOfForms(t *testing.T) {
	t.Parallel()
	root := checkoutRoot(t)
	up := clustertest.Launch(t, "up", clustertest.Build(t).Tandem, "up", "--model", filepath.Join(root, "models", "fable"),
		"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "").AwaitServing(t)
	for name, c := range map[string]struct{ where, want, variable, path string }{
		"structured": {
			"TANDEM_ADDR=" + up.Field(t, "grpc"), `^".{1,80}" is [1-9]\d? years old and has [0-2] friends: \[.*\]\n$`, "TANDEM_ADDR=", "",
		},
		"tools": {
			"OPENAI_BASE_URL=http://" + address(up.Field(t, "http")) + "/v1", `^weather\(\{\s*"city":\s*"(Paris|Rome)",\s*"days":\s*[1-7]\s*\}\) = (Paris|Rome), [1-7] days: sun\n(?s:.+)$`,
			"OPENAI_BASE_URL=http://", "/v1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			program := goExample(t, root, name)
			run := func(where string) (string, error) {
				cmd := exec.CommandContext(t.Context(), program)
				cmd.Env = append(clustertest.Environ(), where)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := run(c.where); err != nil || !regexp.MustCompile(c.want).MatchString(out) {
				t.Errorf("%v: %s", err, out)
			}
			if out, err := run(c.variable + nobodyAt(t) + c.path); err == nil || !strings.Contains(out, "start a mesh with 'tandem up'") {
				t.Errorf("without a mesh: %v: %s", err, out)
			}
		})
	}
}

// TestExamplesOverTLS runs the programs of examples/ that call over gRPC against a mesh with TLS.
func TestExamplesOverTLS(t *testing.T) {
	t.Parallel()
	root, certs := checkoutRoot(t), t.TempDir()
	up := clustertest.Launch(t, "up", clustertest.Build(t).Tandem, "up", "--model", filepath.Join(root, "models", "fable"),
		"--listen", "127.0.0.1:0", "--http", "", "--metrics", "", "--control", "", "--tls", "--certs", certs).AwaitServing(t)
	for _, name := range []string{"grpc", "structured"} {
		cmd := exec.CommandContext(t.Context(), goExample(t, root, name))
		cmd.Env = append(clustertest.Environ(), "TANDEM_ADDR="+up.Field(t, "grpc"), "TANDEM_CA="+filepath.Join(certs, "ca.crt"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// unread runs an example whose answer nobody reads, and returns what it says of that.
func unread(t *testing.T, root, where string, run []string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `"$@" | true`, "sh"}, run...)...)
	var errs strings.Builder
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(clustertest.Environ(), where), &errs
	err := cmd.Run()
	return errs.String(), err
}

// nobodyAt is an address at which nobody listens.
func nobodyAt(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// goExample builds a program of examples/.
func goExample(t *testing.T, root, name string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./examples/"+name)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// refusesFirst is the URL of a server that hands each second request on to the one at an
// address, and refuses those between as a router that is full does.
func refusesFirst(t *testing.T, to string) (base string) {
	t.Helper()
	var requests atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})
	proxy.FlushInterval = -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Go's proxy reads a body to its end only after the answer may have begun, when
		// Go's server has closed it.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		if requests.Add(1)%2 == 0 {
			r.Body = io.NopCloser(bytes.NewReader(body))
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Retry-After-Ms", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"message":"the queue is full","type":"server_error","code":"queue_full"}}`+"\n")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// refusesFirstCall is refusesFirst over gRPC.
func refusesFirstCall(t *testing.T, to string) (addr string) {
	t.Helper()
	conn, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	inferencev1.RegisterInferenceServer(server, &refusingServer{to: inferencev1.NewInferenceClient(conn)})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	return listener.Addr().String()
}

type refusingServer struct {
	inferencev1.UnimplementedInferenceServer
	to       inferencev1.InferenceClient
	requests atomic.Int64
}

func (s *refusingServer) Generate(q *inferencev1.GenerateRequest, out grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	if s.requests.Add(1)%2 == 1 {
		return status.Error(codes.ResourceExhausted, "the queue is full")
	}
	in, err := s.to.Generate(out.Context(), q)
	for err == nil {
		var event *inferencev1.GenerateEvent
		if event, err = in.Recv(); err == nil {
			err = out.Send(event)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
