package commands_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/rpc"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func overBudget() *controlv1.GetBudgetResponse {
	const ms = 1e6
	return &controlv1.GetBudgetResponse{
		Window: durationpb.New(5 * time.Minute), Requests: 4000, Failed: 2, Breaches: 40,
		Lines: []*controlv1.BudgetLine{
			{Name: "queue", Declared: durationpb.New(50 * time.Millisecond), Count: 4000, SumNs: 80000 * ms, P50Ns: 10 * ms, P90Ns: 20 * ms, P95Ns: 30 * ms, P99Ns: 520 * ms, P999Ns: 600 * ms, MaxNs: 700 * ms, Breaches: 30},
			{Name: "transfer_exposed", Count: 1000, P50Ns: ms, P90Ns: ms, P95Ns: ms, P99Ns: ms, P999Ns: ms, MaxNs: ms, Breaches: 10},
			{Name: "decode", PerToken: true},
			{Name: "tpot", Total: true, PerToken: true, Count: 4000, P50Ns: ms, P90Ns: ms, P95Ns: ms, P99Ns: ms, P999Ns: 31.5 * ms, MaxNs: 32 * ms},
			{Name: "ttft", Total: true, Declared: durationpb.New(500 * time.Millisecond), Count: 4000, P50Ns: 100 * ms, P90Ns: 200 * ms, P95Ns: 300 * ms, P99Ns: 812 * ms, P999Ns: 900 * ms, MaxNs: 1000 * ms, Breaches: 30},
		},
		Parts: []*controlv1.BudgetLine{
			{Name: "fetch", Count: 10, SumNs: 60 * ms, P50Ns: 5 * ms, P90Ns: 8 * ms, P95Ns: 8 * ms, P99Ns: 9 * ms, P999Ns: 9 * ms, MaxNs: 9 * ms},
		},
		Overruns: []*controlv1.BudgetOverrun{
			{Name: "ttft", Percentile: 99, SpentNs: 812 * ms, DeclaredNs: 500 * ms, Stage: "queue", StageSpentNs: 520 * ms, StageDeclaredNs: 50 * ms, RequestId: "r1"},
			{Name: "tpot", Percentile: 99.9, SpentNs: 31.5 * ms, DeclaredNs: 30 * ms, Stage: "transfer_exposed", StageSpentNs: 9 * ms, RequestId: "r2"},
			{Name: "reserve", Percentile: 100, SpentNs: 31.5 * ms, DeclaredNs: 30 * ms, Stage: "reserve", StageSpentNs: 31.5 * ms, StageDeclaredNs: 30 * ms, RequestId: "r3"},
		},
	}
}

func TestBudget(t *testing.T) {
	router := &fakeRouter{budget: overBudget()}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "budget", "--control", addr)
	want := `the last 5m0s: 4000 requests ended well, 40 over the budget; 2 failed, not in the table

                  MS  DECLARED     P50     P90     P95     P99   P99.9      MAX  BREACHES OF 40
               queue     50.00   10.00   20.00   30.00  520.00  600.00   700.00        30 (75%)
    transfer exposed         -    1.00    1.00    1.00    1.00       -     1.00        10 (25%)
    decode (a token)         -       -       -       -       -       -        -               -
  fetch (in prefill)         -    5.00       -       -       -       -     9.00               -
      tpot (a token)         -    1.00    1.00    1.00    1.00   31.50    32.00               -
                ttft    500.00  100.00  200.00  300.00  812.00  900.00  1000.00        30 (75%)
-: too few samples to tell that percentile: p90 takes 36, p95 takes 72, p99 takes 368, p99.9 takes 3688

p99 ttft 812 ms of 500 ms: queue 520 ms of 50.0 ms (tandem explain --control ` + addr + ` r1)
p99.9 tpot 31.5 ms of 30.0 ms: transfer exposed 9.00 ms, which has no declared limit (tandem explain --control ` + addr + ` r2)
slowest reserve 31.5 ms of 30.0 ms (tandem explain --control ` + addr + ` r3)
`
	if diff := cmp.Diff(want, got.stdout); diff != "" || got.status != 0 {
		t.Errorf("status %d, %s, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
	got = run(t.Context(), "", nil, "budget", "--json", "--control", addr)
	var budget map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &budget); err != nil || got.status != 0 {
		t.Fatalf("%v in %+v", err, got)
	}
	queue := map[string]any{
		"name": "queue", "per_token": false, "declared_ms": 50.0, "count": 4000.0, "breaches": 30.0, "breach_share": .75,
		"spent_ms": map[string]any{"count": 4000.0, "mean": 20.0, "p50": 10.0, "p90": 20.0, "p95": 30.0, "p99": 520.0, "p999": 600.0, "max": 700.0},
	}
	if diff := cmp.Diff(queue, budget["stages"].([]any)[0]); diff != "" {
		t.Errorf("queue (-want +got):\n%s", diff)
	}
	decode := budget["stages"].([]any)[2].(map[string]any)
	if decode["declared_ms"] != nil || decode["spent_ms"] != nil || budget["window_seconds"] != 300.0 || len(budget["totals"].([]any)) != 2 {
		t.Errorf("got %v", budget)
	}
	overrun := budget["overruns"].([]any)[1].(map[string]any)
	if overrun["stage_declared_ms"] != nil || overrun["stage"] != "transfer_exposed" || overrun["request_id"] != "r2" {
		t.Errorf("got %v", overrun)
	}
}

func TestBudgetSaysWhatThereIsToSay(t *testing.T) {
	for _, test := range []struct {
		budget *controlv1.GetBudgetResponse
		want   string
	}{
		{&controlv1.GetBudgetResponse{}, "no budget is declared: start the router with flags such as --budget-ttft 500ms; 'tandem up --help-all' lists them\n"},
		{&controlv1.GetBudgetResponse{Requests: 1, Lines: []*controlv1.BudgetLine{{Name: "ttft", Total: true, Declared: durationpb.New(time.Second)}}}, "the budget holds"},
		{&controlv1.GetBudgetResponse{Requests: 9, Breaches: 2, Lines: []*controlv1.BudgetLine{{Name: "ttft", Total: true, Declared: durationpb.New(time.Second), Breaches: 2}}}, "\n\nthe requests that broke it are no longer kept: see BREACHES\n"},
	} {
		got := run(t.Context(), "", nil, "budget", "--control", (&fakeRouter{budget: test.budget}).start(t))
		if got.status != 0 || !strings.Contains(got.stdout, test.want) {
			t.Errorf("%+v lacks %q", got, test.want)
		}
	}
}

// Three requests have no percentile but their middle, and not even that: only a
// largest. The request at a percentile is then called what it is.
func TestBudgetOfFewRequests(t *testing.T) {
	const ms = 1e6
	line := func(name string, count uint64, total bool) *controlv1.BudgetLine {
		return &controlv1.BudgetLine{Name: name, Total: total, Declared: durationpb.New(time.Millisecond), Count: count, P50Ns: 2 * ms, P90Ns: 4 * ms, P95Ns: 4 * ms, P99Ns: 4 * ms, P999Ns: 4 * ms, MaxNs: 4 * ms}
	}
	over := func(name string, percentile float64) *controlv1.BudgetOverrun {
		return &controlv1.BudgetOverrun{Name: name, Percentile: percentile, SpentNs: 4 * ms, DeclaredNs: ms, Stage: name, RequestId: "r"}
	}
	router := &fakeRouter{budget: &controlv1.GetBudgetResponse{
		Window: durationpb.New(time.Minute), Requests: 3,
		Lines:    []*controlv1.BudgetLine{line("queue", 5, false), line("prefill", 6, false), line("ttft", 3, true), line("e2e", 250, true)},
		Overruns: []*controlv1.BudgetOverrun{over("ttft", 99), over("ttft", 99.9), over("e2e", 99)},
	}}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "budget", "--control", addr)
	_, table, _ := strings.Cut(got.stdout, "\n\n")
	want := `       MS  DECLARED   P50   P90   P95  P99  P99.9   MAX  BREACHES
    queue      1.00     -     -     -    -      -  4.00         -
  prefill      1.00  2.00     -     -    -      -  4.00         -
     ttft      1.00     -     -     -    -      -  4.00         -
      e2e      1.00  2.00  4.00  4.00    -      -  4.00         -
-: too few samples to tell that percentile: p50 takes 6, p90 takes 36, p95 takes 72, p99 takes 368, p99.9 takes 3688

slowest ttft 4.00 ms of 1.00 ms (tandem explain --control ` + addr + ` r)
slowest ttft 4.00 ms of 1.00 ms (tandem explain --control ` + addr + ` r)
number 3 of the slowest e2e 4.00 ms of 1.00 ms (tandem explain --control ` + addr + ` r)
`
	if diff := cmp.Diff(want, table); diff != "" || got.status != 0 {
		t.Errorf("status %d, %s, output (-want +got):\n%s", got.status, got.stderr, diff)
	}
	got = run(t.Context(), "", nil, "budget", "--json", "--control", addr)
	var budget struct {
		Stages []struct {
			SpentMs map[string]*float64 `json:"spent_ms"`
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &budget); err != nil || len(budget.Stages) != 2 {
		t.Fatalf("%v in %+v", err, got)
	}
	for name, there := range map[string]bool{"p50": true, "p90": false, "p99": false, "p999": false, "max": true} {
		if value, key := budget.Stages[1].SpentMs[name]; !key || (value != nil) != there {
			t.Errorf("%s of six requests: key %t, value %t, want %t", name, key, value != nil, there)
		}
	}
}

func TestExplainSlowest(t *testing.T) {
	var asked *controlv1.Slowest
	router := &fakeRouter{explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
		if asked = r.GetSlowest(); asked == nil {
			return nil, rpc.InvalidArgument("slowest", "is not set")
		}
		if asked.GetPercentile() == 50 {
			return nil, rpc.Error(codes.NotFound, "REQUEST_NOT_FOUND", "no request has succeeded at this router yet", 0)
		}
		return &controlv1.ExplainResponse{
			RequestId: "slow", Arrived: timestamppb.New(time.Unix(0, 0)), Status: "OK", Rank: 2, Ranked: 150,
			Timings: &inferencev1.Timings{QueueNs: 4e6, PrefillNs: 1e6, TotalNs: 5e6},
		}, nil
	}}
	addr := router.start(t)
	got := run(t.Context(), "", nil, "explain", "--slowest", "p99", "--control", addr)
	if got.status != 0 || asked.GetPercentile() != 99 || asked.GetBy() != controlv1.RankBy_RANK_BY_TTFT {
		t.Errorf("%+v, asked %v", got, asked)
	}
	for _, part := range []string{"request slow", "number 2 of 150 requests, slowest by ttft first (--by e2e for the whole request)\n", "5.00 ms = tokenize 0.00 + queue 4.00"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("output lacks %q:\n%s", part, got.stdout)
		}
	}
	got = run(t.Context(), "", nil, "explain", "--slowest", "max", "--by", "e2e", "--json", "--control", addr)
	if got.status != 0 || asked.GetPercentile() != 100 || asked.GetBy() != controlv1.RankBy_RANK_BY_E2E || !strings.Contains(got.stdout, `"rank":2,"ranked":150,"ranked_by":"e2e"`) {
		t.Errorf("%+v, asked %v", got, asked)
	}
	checkFailure(t, run(t.Context(), "", nil, "explain", "--slowest", "p50", "--control", addr), 1, "no request has succeeded")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--slowest", "p101"}, `--slowest: "p101" is not a percentile: write p50, p99, p99.9 or max`},
		{[]string{"--slowest", "p0"}, "is not a percentile"},
		{[]string{"--slowest", "pNaN"}, "is not a percentile"},
		{[]string{"--slowest", "p99", "r1"}, `takes no argument "r1"`},
		{[]string{"--slowest", "p99", "--by", "tpot"}, `"tpot" is neither ttft nor e2e`},
		{[]string{"r1", "--by", "e2e"}, "pass --slowest p99 too"},
	} {
		checkFailure(t, run(t.Context(), "", nil, append([]string{"explain", "--control", addr}, c.args...)...), 2, c.want)
	}
}

// The section of a configuration file is the flags.
func TestBudgetInAConfigurationFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tandem.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("budget:\n  ttft: 500ms\n  queue: 50ms\n  transfer-exposed: 20ms\n  tpot: 30ms\n")
	got := run(t.Context(), "", nil, "config", "print", "serve", "--target=router", "--json", "--config", file)
	var printed map[string]struct{ Value, Source any }
	if err := json.Unmarshal([]byte(got.stdout), &printed); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	for flag, want := range map[string]string{"budget-ttft": "500ms", "budget-queue": "50ms", "budget-transfer-exposed": "20ms", "budget-prefill": "0s"} {
		if printed[flag].Value != want {
			t.Errorf("%s is %+v, want %s", flag, printed[flag], want)
		}
	}
	if got := run(t.Context(), "", nil, "config", "validate", file); got.status != 0 {
		t.Errorf("%+v", got)
	}
	write("budget:\n  ttft: 500ms\n  queue: 200ms\n  prefill: 400ms\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, ":2: budget-ttft is 500ms, but its stages add up to 600ms: raise it or lower one of budget-queue 200ms, budget-prefill 400ms")
	write("budget:\n  quee: 200ms\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, `unknown key "budget.quee": did you mean "budget.queue"?`)
	write("budget:\n  queue: 200\n")
	checkFailure(t, run(t.Context(), "", nil, "config", "validate", file), 1, `:2: budget.queue: "200" is not a duration`)
}
