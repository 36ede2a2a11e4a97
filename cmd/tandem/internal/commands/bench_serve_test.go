package commands_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/pkg/api"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const ms = time.Millisecond

// quick is a fake server's latency.
var quick = fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 20 * ms}, ITL: fakeserver.Delay{Mean: 2 * ms}}

// fakeServer serves shape by gRPC and returns its address.
func fakeServer(t *testing.T, shape fakeserver.Shape) string {
	t.Helper()
	engine := startEngine(t, shape)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := fakeserver.NewServer(engine)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func startEngine(t *testing.T, shape fakeserver.Shape) *fakeserver.Engine {
	t.Helper()
	engine, err := fakeserver.NewEngine(shape, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

// figures are the keys that scripts read.
type figures struct {
	Schema                     string
	Requests, Errors, Rejected *int
	Completed                  int
	TTFT                       map[string]any `json:"ttft_ms"`
	ITL                        map[string]any `json:"itl_ms"`
	TPOT                       map[string]any `json:"tpot_ms"`
	E2E                        map[string]any `json:"e2e_ms"`
	OutputTokensPerS           *float64       `json:"output_tokens_per_s"`
	Goodput                    *float64       `json:"goodput_rps"`
	Attainment                 *float64       `json:"slo_attainment"`
	Target                     struct{ Kind, Model string }
	Interrupted                bool
	Command                    []string
}

// checkKeys checks that the keys of the contract are there.
func (f figures) checkKeys(t *testing.T) {
	t.Helper()
	if f.Requests == nil || f.Errors == nil || f.Rejected == nil || f.OutputTokensPerS == nil || f.Goodput == nil || f.Attainment == nil {
		t.Errorf("a key is missing: %+v", f)
	}
	for name, latency := range map[string]map[string]any{"ttft": f.TTFT, "itl": f.ITL, "tpot": f.TPOT, "e2e": f.E2E} {
		for _, percentile := range []string{"p50", "p90", "p95", "p99", "p999", "max"} {
			if _, there := latency[percentile]; !there {
				t.Errorf("%s has no %s: %v", name, percentile, latency)
			}
		}
	}
}

func benched(t *testing.T, want int, args ...string) figures {
	t.Helper()
	got := run(t.Context(), "", nil, append([]string{"bench", "serve", "--json"}, args...)...)
	if got.status != want {
		t.Fatalf("status %d, want %d: %s", got.status, want, got.stderr)
	}
	var f figures
	if err := json.Unmarshal([]byte(got.stdout), &f); err != nil {
		t.Fatalf("%v in %s", err, got.stdout)
	}
	f.checkKeys(t)
	return f
}

func TestBenchServeWritesEveryForm(t *testing.T) {
	addr, dir := fakeServer(t, quick), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	f := benched(t, 0, "--addr", addr, "--rate=100", "--arrival=constant", "--duration=1s", "--warmup=200ms",
		"--prompt-tokens=4", "--output-tokens=3", "--slo=ttft:p99<10s", "--name=test",
		"--out", file("r.json"), "--report", file("r.html"), "--csv", file("r.csv"), "--hdr", file("r.hdr"))
	if f.Completed < 95 || f.Completed > 101 || f.Completed != *f.Requests || *f.Attainment != 1 || f.Target.Kind != "tandem" || f.Interrupted {
		t.Errorf("%+v", f)
	}
	for name, want := range map[string]string{"r.json": `"schema": "tandem.bench.serve/1`, "r.html": "<!doctype html>", "r.csv": "outcome", "r.hdr": "histogram log format"} {
		text, err := os.ReadFile(file(name))
		if err != nil || !strings.Contains(strings.ToLower(string(text)), want) {
			t.Errorf("%s: %v, %d bytes without %q", name, err, len(text), want)
		}
	}
	same := run(t.Context(), "", nil, "bench", "compare", file("r.json"), file("r.json"), "--json")
	var compared struct {
		Regressions *int
		Changes     []any
	}
	if err := json.Unmarshal([]byte(same.stdout), &compared); err != nil || same.status != 0 || compared.Regressions == nil || *compared.Regressions != 0 || len(compared.Changes) == 0 {
		t.Errorf("a report compared with itself: %v, %+v", err, same)
	}
}

func TestBenchServeMeasuresOpenAI(t *testing.T) {
	server, err := fakeserver.NewOpenAIServer(startEngine(t, quick), fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM})
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	for _, api := range []string{"completions", "chat"} {
		f := benched(t, 0, "--openai", listening.URL, "--openai-api", api, "--concurrency=4", "--duration=500ms", "--warmup=0s",
			"--prompt-tokens=4", "--output-tokens=3")
		if f.Completed == 0 || *f.Errors != 0 || f.Target.Kind != "openai" || f.Target.Model != fakeserver.Model {
			t.Errorf("%s: %+v", api, f)
		}
	}
}

// Ctrl-C ends with the report of what was measured.
func TestBenchServeInterrupted(t *testing.T) {
	address := fakeServer(t, quick)
	var got outcome
	var f figures
	for after := time.Second; f.Completed == 0 && after < time.Minute; after *= 3 { // a busy machine has done nothing after one
		ctx, cancel := context.WithTimeout(t.Context(), after)
		got = run(ctx, "", nil, "bench", "serve", "--addr", address, "--rate=100", "--duration=1h", "--warmup=0s",
			"--prompt-tokens=4", "--output-tokens=3", "--json")
		cancel()
		_ = json.Unmarshal([]byte(got.stdout), &f)
	}
	if err := json.Unmarshal([]byte(got.stdout), &f); err != nil || got.status != 130 || !f.Interrupted || f.Completed == 0 {
		t.Errorf("%v: %+v", err, got)
	}
	if !strings.Contains(got.stderr, "interrupted: the report has what was measured") {
		t.Errorf("it says %q", got.stderr)
	}
}

func TestBenchServeThatNobodyAnswers(t *testing.T) {
	f := benched(t, 1, "--addr", fakeServer(t, fakeserver.Shape{RejectShare: 1}), "--rate=50", "--duration=500ms", "--warmup=0s")
	if f.Completed != 0 || *f.Rejected == 0 {
		t.Errorf("%+v", f)
	}
}

func TestBenchMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	azure := write("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,many,109\n")
	mooncake := write("mooncake.jsonl", `{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [0]}`+"\n"+`{"timestamp": 1, "input_length": 10, "output_length": 5, "hash_ids": [0}`+"\n")
	report := write("report.json", `{"schema":"tandem.bench.serve/9.0"}`)
	addr := fakeServer(t, quick)
	serve := func(args ...string) []string { return append([]string{"bench", "serve"}, args...) }
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{serve(), 2, "say how much load"},
		{serve("--rate=0"), 2, "--rate: 0 sends no requests: pass a rate above 0"},
		{serve("--rate=-3"), 2, "--rate: -3 is outside what can be sent: pass more than 0, and at most 1000000 requests a second"},
		{serve("--addr=127.0.0.1:1", "--rate=1"), 1, "127.0.0.1:1"},
		{serve("--addr=http://x", "--rate=1"), 2, "--addr: connect to \"http://x\": this is a URL"},
		{[]string{"bench", "overload", "--addr=x:none", "--slo=ttft:p90<1s"}, 2, "--addr: connect to \"x:none\": \"none\" is not a port"},
		{serve("--openai=http://127.0.0.1:1", "--rate=1"), 1, "127.0.0.1:1"},
		{serve("--openai=ftp://x", "--rate=1"), 2, "ftp"},
		{serve("--openai=http://y", "--openai-api=zz", "--rate=1"), 2, "use --openai-api completions"},
		{serve("--openai=http://y", "--openai-body=[1]", "--rate=1"), 2, "give --openai-body a JSON object"},
		{serve("--openai=http://y", "--openai-header=bad", "--rate=1"), 2, "give it as --openai-header"},
		{serve("--concurrency=9", "--max-in-flight=8"), 2, "--concurrency 9 is more than --max-in-flight 8"},
		{serve("--addr=x:1", "--openai=http://y", "--rate=1"), 2, "--addr and --openai name two servers"},
		{[]string{"bench", "overload", "--addr=x:1", "--openai=http://y", "--slo=ttft:p90<1s"}, 2, "--addr and --openai name two servers"},
		{serve("--openai=http://y", "--api-key=k", "--rate=1"), 2, "pass the key of the server at --openai as --openai-key"},
		{[]string{"bench", "overload", "--openai=http://y", "--api-key=k", "--slo=ttft:p90<1s"}, 2, "pass the key of the server at --openai as --openai-key"},
		{serve("--rate=1", "--slo=ttft:p99<500"), 2, "--slo"},
		{serve("--rate=1", "--slo=tfft:p99<500ms"), 2, "tfft"},
		{serve("--rate=1", "--mode=both"), 2, "--mode"},
		{serve("--rate=1", "--prompt-tokens=many"), 2, "prompt-tokens"},
		{serve("--sweep=1,two"), 2, "two"},
		{serve("--sweep", "1,2"), 2, "--sweep=1,2"},
		{serve("--addr", addr, "--trace", azure), 1, "azure.csv:3:"},
		{serve("--addr", addr, "--trace", mooncake), 1, "mooncake.jsonl:2:"},
		{serve("--addr", addr, "--trace", filepath.Join(dir, "none")), 1, "tandem: --trace: open " + filepath.Join(dir, "none") + ": no such file"},
		{serve("--trace", mooncake, "--rate=3"), 2, "--speed"},
		{serve("--rate=1", "--send-slo", "--slo=e2e:p99<1s"), 2, "no bound to send"},
		{serve("--openai=http://y", "--rate=1", "--send-slo", "--slo=ttft:p99<1s"), 2, "OpenAI's API cannot carry an SLO"},
		{serve("--rate=1", "--report", filepath.Join(dir, "no", "r.html")), 1, "make it first"},
		{serve("--rate=1", "--out", dir), 1, "name a file"},
		{[]string{"bench", "compare", report}, 2, "needs the report from after"},
		{[]string{"bench", "compare", report, report}, 1, "9.0"},
		{[]string{"bench", "compare", azure, azure}, 1, "azure.csv"},
		{[]string{"bench", "compare", "a", "b", "--threshold=-1"}, 2, "--threshold"},
		{[]string{"bench", "modes", "--rates=x"}, 2, "--rates"},
		{[]string{"bench", "modes", "--threads=0"}, 2, "--threads"},
		{[]string{"bench", "modes", "--trace", mooncake}, 2, "--trace brings its own times"},
		{[]string{"bench", "overload", "--addr", addr, "--slo=ttft:p90<1s", "--surge=1s+1s=2"}, 2, "--surge changes the rate, and overload adds a burst of its own"},
		{[]string{"bench", "overload", "--addr", addr, "--slo=ttft:p90<1s", "--trace", mooncake}, 2, "--trace brings its own times"},
		{[]string{"bench", "simulated", "--profile", report, "--trace", mooncake}, 2, "--trace brings its own times"},
		{[]string{"bench", "modes", "--virtual", "--trace", "/nowhere.csv"}, 1, "tandem: --trace: open /nowhere.csv: no such file"},
		{[]string{"bench", "overload", "--addr", addr, "--slo=ttft:p90<1s", "--trace", "/nowhere.csv"}, 1, "tandem: --trace: open /nowhere.csv: no such file"},
		{[]string{"bench", "simulated", "--profile", report, "--trace", "/nowhere.csv"}, 1, "tandem: --trace: open /nowhere.csv: no such file"},
		{[]string{"bench", "simulated"}, 2, "tandem profile --out"},
		{[]string{"bench", "simulated", "--profile", filepath.Join(dir, "none")}, 1, "none"},
	} {
		got := run(t.Context(), "", nil, c.args...)
		// Where a server was asked first, a line of progress may stand before the error.
		if got.stderr = strings.TrimPrefix(got.stderr, "trace\n"); got.stdout != "" {
			t.Errorf("%v prints %q", c.args, got.stdout)
		}
		checkFailure(t, got, c.status, c.want)
	}
}

// A rate that the client cannot send ends with a report that says so, and no verdict.
func TestBenchServeAboveWhatTheClientCanSend(t *testing.T) {
	got := run(t.Context(), "", nil, "bench", "serve", "--addr", fakeServer(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: time.Minute}}),
		"--rate=20000", "--duration=300ms", "--warmup=0s", "--drain-timeout=0s", "--max-in-flight=50", "--output-tokens=2", "--prompt-tokens=2", "--json")
	var f struct {
		Unsent  int
		Verdict string
		Client  struct{ Bottleneck string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &f); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	if f.Unsent == 0 || f.Verdict != "NONE" || !strings.Contains(f.Client.Bottleneck, "50") {
		t.Errorf("%+v", f)
	}
}

// What may go to anyone holds no key: neither in a report nor in what is made of it.
func TestBenchServeKeepsSecrets(t *testing.T) {
	server, err := fakeserver.NewOpenAIServer(startEngine(t, quick), fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM, APIKey: "geheim-1"})
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	plain := []string{"--concurrency=2", "--duration=300ms", "--warmup=0s", "--prompt-tokens=4", "--output-tokens=3"}
	secret := []string{
		"--openai", strings.Replace(listening.URL, "://", "://user:geheim-2@", 1), "--openai-key", "geheim-1", "--openai-header", "X-Key: geheim-3",
	}
	joined := []string{secret[0] + "=" + secret[1], secret[2] + "=" + secret[3], secret[4] + "=" + secret[5]}
	address := strings.Replace(listening.URL, "://", "://***@", 1)

	f := benched(t, 0, append(append([]string{"--out", file("a.json"), "--report", file("a.html"), "--csv", file("a.csv"), "--hdr", file("a.hdr")}, secret...), plain...)...)
	if f.Completed == 0 {
		t.Fatalf("%+v", f)
	}
	shown := strings.Join(f.Command, " ")
	for _, want := range []string{"bench serve --json --out", "--openai " + address, "--openai-key *** --openai-header X-Key: *** --concurrency=2"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the command reads %q, without %q", shown, want)
		}
	}
	f = benched(t, 0, append(append([]string{"--out", file("b.json")}, joined...), plain...)...)
	shown = strings.Join(f.Command, " ")
	if want := "--openai=" + address + " --openai-key=*** --openai-header=X-Key: *** "; !strings.Contains(shown, want) {
		t.Errorf("the command reads %q, without %q", shown, want)
	}
	for given, want := range map[string]string{"--api-key geheim-4": " --api-key *** ", "--api-key=geheim-4": " --api-key=*** "} {
		f = benched(t, 0, append(append([]string{"--addr", fakeServer(t, quick)}, strings.Fields(given)...), plain...)...)
		if shown = strings.Join(f.Command, " "); !strings.Contains(shown, want) {
			t.Errorf("the command reads %q, without %q", shown, want)
		}
	}
	table := run(t.Context(), "", nil, append(append([]string{"bench", "serve"}, secret...), plain...)...)
	compared := run(t.Context(), "", nil, "bench", "compare", file("a.json"), file("b.json"), "--threshold=99")
	for name, got := range map[string]outcome{"table": table, "comparison": compared} {
		if got.status != 0 || strings.Contains(got.stdout+got.stderr, "geheim") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, name := range []string{"a.json", "a.html", "a.csv", "a.hdr", "b.json"} {
		text, err := os.ReadFile(file(name))
		if err != nil || strings.Contains(string(text), "geheim") {
			t.Errorf("%s has a secret (%v)", name, err)
		}
	}
}

// The router is told the SLO's bounds if that is asked for, and only then.
// The load test, which imports nothing of the router, knows its reason for a tenant's limit.
func TestBenchServeKnowsTheTenantsLimit(t *testing.T) {
	r := record.Record{Outcome: record.Rejected, Reason: api.ReasonTenantLimit}
	if !r.TenantLimited() {
		t.Errorf("%s is not known", r.Reason)
	}
}

func TestBenchServeSendsTheSLO(t *testing.T) {
	for _, send := range []bool{false, true} {
		asked := make(chan *inferencev1.GenerateRequest, 1000)
		f := &fakeRouter{generate: func(r *inferencev1.GenerateRequest, _ grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			asked <- r
			return status.Error(codes.ResourceExhausted, "full")
		}}
		got := run(t.Context(), "", nil, "bench", "serve", "--addr", f.start(t), "--concurrency=1", "--duration=50ms", "--warmup=0s",
			"--slo=ttft:p99<400ms,ttft:p50<100ms,tpot:p99<30ms,e2e:p99<9s", "--send-slo="+strconv.FormatBool(send))
		if got.status != 1 || len(asked) == 0 {
			t.Fatalf("%d requests: %+v", len(asked), got)
		}
		slo := (<-asked).GetSlo()
		if send && (slo.GetTtft().AsDuration() != 400*ms || slo.GetTpot().AsDuration() != 30*ms) || !send && slo != nil {
			t.Errorf("asked to send it %t, it is %v", send, slo)
		}
	}
}
