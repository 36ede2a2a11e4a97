package commands_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// The JSON of a plan has the contract's keys, and those of bench serve below predicted.
func TestPlanJSON(t *testing.T) {
	onVirtualTime(t)
	got := run(t.Context(), "", nil, "plan", "--json", "--model", "tiny", "--rate", "20", "--prompt-tokens", "100", "--output-tokens", "20",
		"--slo", "ttft:p90<200ms,tpot:p90<20ms", "--worker-price", "1")
	if got.status != 0 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	var made map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &made); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"feasible", "reason", "prefill_workers", "decode_workers", "utilisation", "predicted", "formulas", "constraints", "million_output_tokens_cost"} {
		if made[key] == nil {
			t.Errorf("the key %s is missing: %s", key, got.stdout)
		}
	}
	predicted, _ := made["predicted"].(map[string]any)
	for _, latency := range []string{"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"} {
		of, _ := predicted[latency].(map[string]any)
		for _, percentile := range []string{"p50", "p90", "p95", "p99", "p999", "max"} {
			if _, is := of[percentile]; !is {
				t.Errorf("predicted.%s.%s is missing", latency, percentile)
			}
		}
	}
	if made["feasible"] != true || predicted["slo_attainment"] == nil || predicted["goodput_rps"] == nil {
		t.Errorf("%s", got.stdout)
	}
}

// For people, a plan says what to type next, as a shell reads it, and a page is written.
func TestPlanForPeople(t *testing.T) {
	onVirtualTime(t)
	dir := t.TempDir()
	page, profile := filepath.Join(dir, "plan.html"), filepath.Join(dir, "a`b#1.json")
	if err := os.WriteFile(profile, []byte(`{"version":1,"prefill":[{"base_ms":1}],"decode":[{"base_ms":1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t.Context(), "", nil, "plan", "--rate", "20", "--prompt-tokens", "100", "--output-tokens", "20", "--slo", "ttft:p90<200ms", "--report", page, "--profile", profile)
	if got.status != 0 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	for _, want := range []string{
		"plan: 1 prefill and 1 decode worker", "M/G/c (Allen–Cunneen)", "Little's law", "Amdahl's law", "utilisation of at most 0.85",
		"tandem up --engine simulated --prefill 1 --decode 1 --profile '" + profile + "'\n", "tandem plan verify --rate 20", "'ttft:p90<200ms' --profile '" + profile + "' --prefill 1 --decode 1\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), `"planned":20`) {
		t.Errorf("the page: %v", err)
	}
	if !strings.HasSuffix(got.stderr, "wrote the page "+page+": open it in a browser\n") {
		t.Errorf("it says %q", got.stderr)
	}
}

// What is infeasible is one line, and JSON where that is asked for.
func TestPlanInfeasible(t *testing.T) {
	args := []string{"plan", "--rate", "5", "--slo", "ttft:p90<1ms"}
	checkFailure(t, run(t.Context(), "", nil, args...), 1, "infeasible, because ttft:p90<1ms is too tight")
	got := run(t.Context(), "", nil, append(args, "--json")...)
	checkFailure(t, got, 1, "the nearest feasible SLO is ttft:p90<")
	var made struct {
		Feasible   *bool  `json:"feasible"`
		Reason     string `json:"reason"`
		NearestSLO string `json:"nearest_slo"`
	}
	for _, key := range []string{"utilisation", "predicted"} {
		if !strings.Contains(got.stdout, `"`+key+`":null`) {
			t.Errorf("the key %s is missing: %s", key, got.stdout)
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &made); err != nil || made.Feasible == nil || *made.Feasible || made.Reason == "" || !strings.HasPrefix(made.NearestSLO, "ttft:p90<") {
		t.Errorf("%v: %s", err, got.stdout)
	}
}

func TestPlanMistakes(t *testing.T) {
	addr := (&fakeRouter{}).start(t) // of a model with another context
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"plan"}, 2, "--rate: a plan needs requests"},
		{[]string{"plan", "--rate", "0", "--slo", "ttft:p99<1s"}, 2, "--rate: a plan needs requests: pass a rate above 0"},
		{[]string{"plan", "--rate", "-1", "--slo", "ttft:p99<1s"}, 2, "--rate: -1 is outside"},
		{[]string{"plan", "--rate", "5"}, 2, "--slo: a plan needs an objective"},
		{[]string{"plan", "--rate", "5", "--slo", "fast"}, 2, "--slo"},
		{[]string{"plan", "--rate", "5", "--slo", "ttft:p99<1s", "--worker-price", "-1"}, 2, "--worker-price: -1 is outside 0 to"},
		{[]string{"plan", "--rate", "5", "--slo", "ttft:p99<1s", "--worker-price", "1e308"}, 2, "--worker-price: 1e+308 is outside 0 to 1e+12, for an hour"},
		{[]string{"plan", "--rate", "5", "--slo", "ttft:p99<1s", "--max-workers", "0"}, 2, "--max-workers: 0 is outside 1 to 1000"},
		{[]string{"plan", "--trace", "/nowhere.csv", "--slo", "ttft:p99<1s"}, 1, "--trace: open /nowhere.csv: no such file"},
		{[]string{"plan", "--scenario", "/nowhere.yaml", "--rate", "1", "--slo", "ttft:p99<1s"}, 1, "/nowhere.yaml"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--prefill", "2"}, 2, "--prefill needs --decode"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--within", "0"}, 2, "--within: 0 must be above 0"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--addr", "127.0.0.1:1"}, 1, "127.0.0.1:1"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--addr", "http://x"}, 2, "--addr: connect to \"http://x\": this is a URL"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--decode", "1", "--addr", addr}, 1, "pass --model with the model of the mesh\n"},
		{[]string{"plan", "verify", "--rate", "5", "--slo", "ttft:p99<1s", "--ca", "/nowhere.pem"}, 2, "/nowhere.pem"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			checkFailure(t, run(t.Context(), "", nil, c.args...), c.status, c.want)
		})
	}
}

// What is interrupted while the mesh is measured had its plan.
func TestPlanVerifyInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	router := &fakeRouter{contextTokens: 2048, generate: func(_ *inferencev1.GenerateRequest, s grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		interrupt()
		<-s.Context().Done()
		return s.Context().Err()
	}}
	got := run(ctx, "", nil, "plan", "verify", "--rate", "5000", "--duration", "100ms", "--warmup", "0s", "--prompt-tokens", "8", "--output-tokens", "2",
		"--slo", "ttft:p50<1s", "--decode", "1", "--addr", router.start(t))
	if got.status != 130 || !strings.HasSuffix(got.stderr, "tandem: interrupted before a measurement was complete\n") {
		t.Errorf("%+v", got)
	}
}

// A mesh of another size than the plan's is refused before anything is simulated.
func TestPlanVerifyOfAnotherSize(t *testing.T) {
	router := &fakeRouter{contextTokens: 2048, workers: []*controlv1.ListWorkersResponse{wellMesh()}}
	addr := router.start(t)
	for _, c := range []struct {
		size []string
		want string
	}{
		{[]string{"--prefill=2", "--decode=1"}, "tandem: the mesh has 1 prefill and 1 decode worker, and the plan is for 2 prefill and 1 decode worker: start or stop workers, or pass --prefill 1 --decode 1"},
		{[]string{"--decode=2"}, "and the plan is for 2 workers that do both phases: start or stop workers"},
		{[]string{"--decode=1"}, "tandem: too few requests"}, // a decode worker can do both phases
		{[]string{"--prefill=1", "--decode=1"}, "tandem: too few requests"},
	} {
		args := append([]string{"plan", "verify", "--rate=50", "--duration=2s", "--warmup=0s", "--prompt-tokens=8", "--output-tokens=2", "--slo=ttft:p50<1s", "--addr", addr, "--control", addr}, c.size...)
		if got := run(t.Context(), "", nil, args...); got.status != 1 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%v: %+v, want %q", c.size, got, c.want)
		}
	}
}

// A mesh is not measured for a p99 that so few requests do not have.
func TestPlanVerifyOfTooFew(t *testing.T) {
	router := &fakeRouter{contextTokens: 2048, generate: func(*inferencev1.GenerateRequest, grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		t.Error("a request was sent")
		return nil
	}}
	got := run(t.Context(), "", nil, "plan", "verify", "--rate", "50", "--duration", "2s", "--warmup", "0s", "--prompt-tokens", "8", "--output-tokens", "2",
		"--slo", "ttft:p50<1s", "--decode", "1", "--addr", router.start(t))
	if got.status != 1 || !strings.HasSuffix(got.stderr, "tandem: too few requests for a p99, which takes some 460: pass --duration 10s or more\n") {
		t.Errorf("%+v", got)
	}
}
