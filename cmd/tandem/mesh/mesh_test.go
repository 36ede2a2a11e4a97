package mesh_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// upOptions are a mesh on free ports that does no arithmetic.
func upOptions(t *testing.T) mesh.UpOptions {
	t.Helper()
	var o mesh.UpOptions
	o.RegisterFlags(pflag.NewFlagSet("up", pflag.ContinueOnError))
	o.Engine.Name = engines.Simulated
	o.Model = filepath.Join("..", "..", "..", "models", "fable")
	o.Listen, o.Control, o.HTTP, o.Metrics = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	o.DataDir = t.TempDir()
	return o
}

// neverLoads fails the test if the model is loaded.
func neverLoads(t *testing.T) mesh.Progress {
	return func(stage string, _, _ int64) { t.Errorf("the model was loaded: %s", stage) }
}

func ignore(string, int64, int64) {}

func TestPortInUseNamesTheFlagAndLoadsNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, c := range []struct {
		flag   string
		change func(*mesh.UpOptions)
	}{
		{"--listen", func(o *mesh.UpOptions) { o.Listen = taken.Addr().String() }},
		{"--http", func(o *mesh.UpOptions) { o.HTTP = taken.Addr().String() }},
		{"--metrics", func(o *mesh.UpOptions) { o.Metrics = taken.Addr().String() }},
		{"--control", func(o *mesh.UpOptions) { o.Control = taken.Addr().String() }},
		{"--listen", func(o *mesh.UpOptions) { o.Listen = "nonsense" }},
	} {
		t.Run(c.flag, func(t *testing.T) {
			o := upOptions(t)
			c.change(&o)
			check := func(what string, err error) {
				if err == nil || !strings.HasPrefix(err.Error(), c.flag+": ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: error %v", what, err)
				}
				if o.Listen != "nonsense" && !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("%s: error %v is not that the address is in use", what, err)
				}
			}
			check("up", mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), func(mesh.Up) { t.Error("it is ready") }))
			part := mesh.ServeOptions{Options: o.Options, Target: "router", Listen: o.Listen}
			part.Membership.Endpoints, part.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
			check("serve", mesh.Serve(t.Context(), part, quiet, prometheus.NewRegistry(), neverLoads(t), func(mesh.Part) { t.Error("it is ready") }))
		})
	}
}

func TestBadOptionsLoadNothing(t *testing.T) {
	o := upOptions(t)
	o.DecodeWorkers = 0
	if err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil); err == nil || !strings.HasPrefix(err.Error(), "--decode: ") {
		t.Errorf("error %v", err)
	}
}

// What depends on the model's shape is refused before its weights are read.
func TestOptionsThatDoNotFitTheModel(t *testing.T) {
	for _, c := range []struct {
		flag, want string
		change     func(*mesh.UpOptions)
	}{
		{"--kv-memory", "1KiB does not hold one block of 32 tokens, which takes 65536 bytes", func(o *mesh.UpOptions) { o.Engine.KVMemory = 1 << 10 }},
		{"--kv-memory", "1MiB holds 512 tokens, but a sequence of fable may have 2048, which take 4MiB", func(o *mesh.UpOptions) { o.Engine.KVMemory = 1 << 20 }},
	} {
		o := upOptions(t)
		o.Engine.Name = engines.CPU
		c.change(&o)
		err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil)
		if err == nil || !strings.HasPrefix(err.Error(), c.flag+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s: … %s", err, c.flag, c.want)
		}
	}
}

func TestModelWithoutTokenizer(t *testing.T) {
	o := upOptions(t)
	o.Engine.Name = engines.CPU
	bundled, dir := o.Model, t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(bundled, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Model = dir
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil)
	if err == nil || !strings.Contains(err.Error(), "there is no tokenizer: fetch tokenizer.json") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

func TestModelThatIsNotThere(t *testing.T) {
	o := upOptions(t)
	o.Model = filepath.Join(t.TempDir(), "nothing")
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), neverLoads(t), nil)
	if err == nil || !strings.Contains(err.Error(), "--model") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// A model that is not there is said before etcd is waited for.
func TestModelIsLookedForBeforeEtcdIs(t *testing.T) {
	bare := t.TempDir() // all but a tokenizer
	for _, name := range []string{"config.json", "model.safetensors"} {
		from, err := filepath.Abs(filepath.Join("..", "..", "..", "models", "fable", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(bare, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ target, model, want string }{
		{"prefill", "/nope", "--model names /nope, which holds no model: "},
		{"decode", "/nope", "--model names /nope, which holds no model: "},
		{"decode", filepath.Dir(bare), "config.json: "},
		{"router", "/nope", "--model names /nope, which holds no model: "},
		{"router", bare, "there is no tokenizer: "},
	} {
		part := mesh.ServeOptions{Options: upOptions(t).Options, Target: c.target, Listen: "127.0.0.1:0"}
		part.Model, part.StartTimeout = c.model, 0 // one that waits for etcd fails by the test's own timeout
		part.Membership.Endpoints, part.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
		var log bytes.Buffer
		err := mesh.Serve(t.Context(), part, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), neverLoads(t), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(log.String(), "etcd") {
			t.Errorf("%s of %s: %v, want %q; log: %s", c.target, c.model, err, c.want, log.String())
		}
	}
}

func TestCancelledBeforeTheStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := upOptions(t)
	if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), neverLoads(t), func(mesh.Up) { t.Error("it is ready") }); err != nil {
		t.Errorf("up: %v", err)
	}
	part := mesh.ServeOptions{Options: o.Options, Target: "decode"}
	part.StartTimeout = 5 * time.Minute // a start that waits for it fails by the test's own timeout
	part.Membership.Endpoints, part.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
	if err := mesh.Serve(ctx, part, quiet, prometheus.NewRegistry(), neverLoads(t), func(mesh.Part) { t.Error("it is ready") }); err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestEtcdThatIsAway(t *testing.T) {
	o := upOptions(t)
	part := mesh.ServeOptions{Options: o.Options, Target: "decode"}
	part.StartTimeout = 300 * time.Millisecond
	part.Membership.Endpoints, part.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
	err := mesh.Serve(t.Context(), part, quiet, prometheus.NewRegistry(), neverLoads(t), func(mesh.Part) { t.Error("it is ready") })
	if err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:1") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// Who named no etcd is not asked to start one.
func TestEmbeddedEtcdThatDoesNotAnswer(t *testing.T) {
	o := upOptions(t).Options
	o.StartTimeout = time.Millisecond
	o.Membership.Endpoints, o.Signals.URLs = []string{"http://127.0.0.1:1"}, []string{"nats://127.0.0.1:1"}
	err := mesh.ConnectEmbedded(o)
	if err == nil || !strings.HasPrefix(err.Error(), "--start-timeout: the embedded etcd does not answer after 1ms (") || strings.Contains(err.Error(), "start etcd") {
		t.Errorf("error %v", err)
	}
}

func TestDataDirOfNoEtcd(t *testing.T) {
	o := upOptions(t)
	if err := os.WriteFile(filepath.Join(o.DataDir, "etcd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := mesh.Run(t.Context(), o, quiet, prometheus.NewRegistry(), ignore, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "--data-dir: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// A mesh that listens on a socket says an address that can be dialled, which is
// also how it finds out that it is ready.
func TestMeshOnASocket(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Listen = "unix://" + filepath.Join(t.TempDir(), "s")
	said := ""
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := mesh.Run(ctx, o, logger, prometheus.NewRegistry(), ignore, func(up mesh.Up) { said = up.Address; cancel() }); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("it warns of its own end: %s", log.String())
	}
	if said != o.Listen {
		t.Errorf("it listens on %s and says %q", o.Listen, said)
	}
}

// A mesh that listens on every interface says addresses that can be dialled.
func TestMeshOnEveryInterface(t *testing.T) {
	for _, every := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		ctx, cancel := context.WithCancel(t.Context())
		o := upOptions(t)
		o.Listen, o.Control, o.HTTP, o.Metrics, o.Auth.Insecure = every, every, every, every, true
		if err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
			defer cancel()
			for _, said := range []string{up.Address, up.Control, up.HTTP, up.Metrics} {
				if host, port, err := net.SplitHostPort(said); host != "127.0.0.1" || port == "0" || err != nil {
					t.Errorf("%s is said to be %q", every, said)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
}

// TestLifeOfAMesh starts one, uses it, and stops it under a request. Each line of its log names a
// part once.
func TestLifeOfAMesh(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Listen, o.PrefillWorkers, o.DecodeWorkers = freeAddress(t), 2, 2
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	up, ended := startMesh(ctx, t, o, logger, prometheus.NewRegistry())
	if !up.EmbeddedEtcd || !up.EmbeddedNATS || len(up.Prefill) != 2 || len(up.Decode) != 2 || up.Model != "fable" {
		t.Errorf("it says of itself %+v", up)
	}
	if got, _ := get(t, up.HTTP, "/readyz"); got != http.StatusOK {
		t.Errorf("ready: %d", got)
	}
	if got, text := get(t, up.Metrics, "/metrics"); got != http.StatusOK || !strings.Contains(text, `worker="decode-2"`) {
		t.Errorf("metrics: %d, %d bytes", got, len(text))
	}

	second := upOptions(t)
	second.Listen = up.Address
	if err := mesh.Run(t.Context(), second, quiet, prometheus.NewRegistry(), neverLoads(t), nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second start: %v", err)
	}

	conn, err := rpc.Dial(up.Address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const tokens = 400 // two seconds of the simulated engine
	stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{
		Model: up.Model, Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}, MaxTokens: new(uint32(tokens)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	for { // it no longer says that it is ready, while it drains
		got, _ := get(t, up.HTTP, "/readyz")
		if got == 0 {
			t.Fatal("it was gone before it said that it drains")
		}
		if got == http.StatusServiceUnavailable {
			break
		}
	}
	if got, _ := get(t, up.Metrics, "/metrics"); got != http.StatusOK {
		t.Errorf("metrics while it drains: %d", got)
	}
	received := uint32(0)
	for {
		event, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the running request ended with %v", err)
			}
			break
		}
		if f := event.GetFinished(); f != nil {
			received = f.GetUsage().GetCompletionTokens()
		}
	}
	if received != tokens {
		t.Errorf("the running request got %d tokens of %d", received, tokens)
	}
	_ = conn.Close()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	free, err := net.Listen("tcp", up.Address)
	if err != nil {
		t.Fatalf("the port is not free after the end: %v", err)
	}
	_ = free.Close()
	for _, key := range []string{`"router":`, `"worker":`} {
		if !strings.Contains(log.String(), key) {
			t.Errorf("no line of the log has %s", key)
		}
		for line := range strings.Lines(log.String()) {
			if strings.Count(line, key) > 1 {
				t.Errorf("a line of the log has %s twice: %s", key, line)
			}
		}
	}
}

// get asks over a connection of its own. A server that is gone is status 0.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}
