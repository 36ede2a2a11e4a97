package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/plan"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// asked makes a question of flags, as a command does, and refuses what it refuses.
func asked(t *testing.T, flags ...string) (*plan.Question, error) {
	t.Helper()
	q := &plan.Question{MaxWorkers: 60}
	traffic, all := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	q.Load.RegisterFlags(traffic)
	all.AddFlagSet(traffic)
	var cluster plan.ClusterFlags
	cluster.RegisterFlags(all)
	q.Headroom.RegisterFlags(all)
	if err := all.Parse(flags); err != nil {
		t.Fatal(err)
	}
	var err error
	if q.Cluster, err = cluster.Scenario(traffic, func() (string, error) { return "tiny", nil }); err != nil {
		return nil, err
	}
	q.Load.DurationSet, q.Load.WarmupSet = traffic.Changed("duration"), traffic.Changed("warmup")
	if err := q.Load.Validate(); err != nil {
		return nil, err
	}
	err = q.Validate()
	return q, err
}

func question(t *testing.T, flags ...string) *plan.Question {
	t.Helper()
	q, err := asked(t, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// steps are those of a worker that computes a prompt of 200 tokens in about 25 ms, and a token
// of a few answers in about 6.
var steps = []string{"--simulated-base-ms=5", "--simulated-per-token-ms=0.1", "--simulated-per-context-token-ms=0.0001", "--prompt-tokens=200", "--output-tokens=40"}

func with(flags ...string) []string { return append(flags, steps...) }

// briefly is for simulations so short that they tell a p99, for rates from 12 on: what a plan
// simulates by itself is many times longer (TestPlan).
const briefly = "--duration=40s"

// A plan keeps its rules, and one worker fewer of a kind breaks a rule or the SLO.
func TestPlan(t *testing.T) {
	longtest.OneGoroutine(t)
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"small", []string{"--rate=20", "--slo=ttft:p99<200ms,tpot:p99<20ms"}},
		{"TTFT decides", []string{"--rate=70", "--slo=ttft:p99<65ms,tpot:p99<50ms"}},
		{"TPOT decides", []string{"--rate=70", "--slo=ttft:p99<1s,tpot:p99<6500us"}},
		{"bursts", []string{"--rate=40", "--arrival=gamma", "--burstiness=0.3", "--slo=ttft:p90<150ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q := question(t, with(c.flags...)...)
			made, err := plan.Make(t.Context(), q, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !made.Feasible || made.Prefill < 1 || made.Decode < 1 || made.Reason == "" || len(made.Calculation) < 6 {
				t.Fatalf("%+v", made)
			}
			floor := map[string]int{"prefill": 1, "decode": 1}
			for _, rule := range made.Constraints {
				if rule.Floor {
					floor[rule.Pool] = max(floor[rule.Pool], rule.Workers)
				}
			}
			if made.Prefill < floor["prefill"] || made.Decode < floor["decode"] {
				t.Errorf("%s are below the rules, which take %v", made.Size, floor)
			}
			for pool, used := range made.Utilisation {
				if used > q.Headroom.Utilisation+1e-9 {
					t.Errorf("the utilisation of %s is %.3f, above %v", pool, used, q.Headroom.Utilisation)
				}
			}
			slo, err := measure.ParseSLO(made.SLO)
			if err != nil {
				t.Fatal(err)
			}
			for _, term := range slo.Terms {
				of := map[string]*plan.Percentiles{"ttft": made.Predicted.TTFT, "tpot": made.Predicted.TPOT}[term.Latency]
				got := of.P99
				if term.Percentile == 90 {
					got = of.P90
				}
				if got == nil || *got >= term.Bound.Seconds()*1000 {
					t.Errorf("%s: predicted are %v ms", term, got)
				}
			}
			met := map[plan.Size]bool{}
			for _, trial := range made.Trials {
				met[trial.Size] = trial.Met
			}
			if !met[made.Size] {
				t.Errorf("%s were not simulated, or missed the SLO: %v", made.Size, met)
			}
			for pool, fewer := range map[string]plan.Size{"prefill": {Prefill: made.Prefill - 1, Decode: made.Decode}, "decode": {Prefill: made.Prefill, Decode: made.Decode - 1}} {
				least := floor[pool] == map[string]int{"prefill": made.Prefill, "decode": made.Decode}[pool]
				if did, tried := met[fewer]; did && tried && !least {
					t.Errorf("%s meet the SLO too", fewer)
				}
			}
		})
	}
}

// TestSpeculation: with guesses that are right, and cost little, the formulas and the simulation need
// fewer workers that decode.
func TestSpeculation(t *testing.T) {
	longtest.OneGoroutine(t)
	workers := func(speculate string) (decode int) {
		file := filepath.Join(t.TempDir(), "s.yaml")
		text := "model: tiny\nacceptance: 0.9\nprofile: {base-ms: 5, per-token-ms: 0.1, per-context-token-ms: 0.0001}\n" +
			"pools: {p: {role: prefill}, d: {role: decode, speculate: \"" + speculate + "\", max-sequences: 8}}\ntraffic: {rate: 30}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		q := question(t, "--scenario="+file, "--rate=12", briefly, "--prompt-tokens=100", "--output-tokens=150", "--slo=ttft:p99<500ms,tpot:p99<7ms")
		made, err := plan.Make(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.Decode
	}
	plain, guessing := workers("off"), workers("ngram")
	if plain < 2*guessing {
		t.Errorf("%d decode workers, %d without guesses: want less than half as many", guessing, plain)
	}
	t.Logf("%d decode workers, %d without guesses", guessing, plain)
}

// TestScenarioIsATemplate: a plan is the same whether or not the file's workers change and its rate
// does for a while.
func TestScenarioIsATemplate(t *testing.T) {
	longtest.OneGoroutine(t)
	var plans []string
	for _, more := range []string{
		"",
		"events: [{at: 5s, rate-times: 4, for: 20s}, {at: 6s, kill: decode-1}, {at: 7s, scale: decode, to: 3}]\n" +
			"autoscale: {prefill: 1..4, decode: 1..4, policy: queue, every: 1s, start-time: 0s, down-after: 0s}\n",
	} {
		file := filepath.Join(t.TempDir(), "s.yaml")
		text := "model: tiny\nprofile: {base-ms: 5, per-token-ms: 0.1}\npools: {prefill: {role: prefill}, decode: {role: decode}}\ntraffic: {rate: 30}\n" + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		q := question(t, "--scenario="+file, "--rate=40", "--duration=15s", "--surge=1s+2s=2", "--prompt-tokens=200", "--output-tokens=40", "--slo=ttft:p99<500ms")
		if !q.Load.Workload.Surges() {
			t.Error("the surge of the flags is lost")
		}
		made, err := plan.Make(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		text = fmt.Sprint(made.Size, *made.Predicted.TTFT.P50, *made.Predicted.TTFT.P99, made.Predicted.Requests)
		plans = append(plans, text)
	}
	if plans[0] != plans[1] {
		t.Errorf("planned is %s, without events and autoscaling %s", plans[1], plans[0])
	}
}

// TestLongAnswers: requests have the time that they take, though they outlast the usual limits.
func TestLongAnswers(t *testing.T) {
	longtest.OneGoroutine(t)
	q := question(t, "--rate=1", "--prompt-tokens=100", "--output-tokens=400", "--simulated-base-ms=100", "--duration=1m", "--slo=tpot:p90<200ms")
	if made, err := plan.Make(t.Context(), q, nil); err != nil || made.Predicted.SLOAttainment != 1 {
		t.Errorf("%+v, %v", made, err)
	}
}

// TestBacklogDecides: where too many requests are cut off to tell a percentile, a growing backlog is a
// miss.
func TestBacklogDecides(t *testing.T) {
	longtest.OneGoroutine(t)
	q := question(t, "--rate=1", "--prompt-tokens=100", "--output-tokens=400", "--simulated-base-ms=100", "--duration=1m", "--warmup=1m", "--drain-timeout=10s", "--slo=tpot:p90<200ms")
	q.MaxWorkers = 8
	_, err := plan.Make(t.Context(), q, nil)
	if infeasible, is := errors.AsType[*plan.Infeasible](err); !is || !strings.Contains(infeasible.Reason, "the backlog grew") {
		t.Error(err)
	}
}

var percentiles = regexp.MustCompile(`p[0-9.]+`)

// Each bound that nobody can keep is said to be so at once, and the nearest SLO that is named
// can be kept.
func TestInfeasible(t *testing.T) {
	longtest.OneGoroutine(t)
	for _, c := range []struct {
		name, slo, says string
		flags           []string
	}{
		{"TTFT below the prompt's own time", "ttft:p90<10ms", "ttft:p90<10ms is too tight: p90 of the prompts takes 25", nil},
		{"TPOT below a step", "tpot:p99<4ms", "tpot:p99<4ms is too tight: a decode step takes 5.12 ms for one answer alone", nil},
		{"both", "ttft:p90<10ms,tpot:p99<4ms", "ttft:p90<10ms is too tight", nil},
		{"whole answers", "e2e:p90<100ms", "a request of median prompt and mean answer takes", nil},
		{"a fan-out", "ttft:p90<10ms,tpot:p50<4ms", "ttft:p96.549<10ms of each of 3 calls is too tight", []string{"--fan-out=3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			made, err := plan.Make(t.Context(), question(t, with(append(c.flags, "--rate=12", "--slo="+c.slo)...)...), nil)
			var infeasible *plan.Infeasible
			if !errors.As(err, &infeasible) {
				t.Fatalf("%v", err)
			}
			if made.Feasible || made.NearestSLO != infeasible.Nearest || made.Reason != infeasible.Reason || len(made.Trials) > 0 {
				t.Errorf("%+v", made)
			}
			if !strings.HasPrefix(err.Error(), "infeasible, because ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, want %q in it", err, c.says)
			}
			if asked, got := percentiles.FindAllString(c.slo, -1), percentiles.FindAllString(made.NearestSLO, -1); !slices.Equal(asked, got) {
				t.Errorf("%q was asked for, and the nearest is %q", c.slo, made.NearestSLO)
			}
			if made, err = plan.Make(t.Context(), question(t, with(append(c.flags, "--rate=12", briefly, "--slo="+made.NearestSLO)...)...), nil); err != nil || !made.Feasible {
				t.Errorf("the nearest is not feasible: %v", err)
			}
		})
	}
}

// What is too much for the most workers is said with the reason, whether formulas or
// simulations find it.
func TestTooMany(t *testing.T) {
	q := question(t, with("--rate=2000", "--slo=ttft:p99<1s")...)
	q.MaxWorkers = 10
	made, err := plan.Make(t.Context(), q, nil)
	var infeasible *plan.Infeasible
	if !errors.As(err, &infeasible) || !strings.Contains(made.Reason, "more than 10 workers (--max-workers)") {
		t.Errorf("%v, %+v", err, made)
	}
}

// Each rule of headroom takes more workers where it is stricter.
func TestHeadroom(t *testing.T) {
	longtest.OneGoroutine(t)
	size := func(mode inferencev1.Mode, flags ...string) *plan.Plan {
		q := question(t, with(append([]string{"--rate=60", "--duration=10s", "--slo=ttft:p99<500ms,tpot:p99<20ms"}, flags...)...)...)
		q.Mode = mode
		made, err := plan.Make(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	const auto, aggregated = inferencev1.Mode_MODE_AUTO, inferencev1.Mode_MODE_AGGREGATED
	for _, mode := range []inferencev1.Mode{auto, aggregated} {
		plain := size(mode)
		for _, c := range []struct {
			rule  string
			flags []string
		}{
			{"utilisation", []string{"--max-utilisation=0.4"}},
			{"burst", []string{"--burst=4", "--burst-drain=2s"}},
			{"variance", []string{"--deviations=10", "--max-sequences=16"}},
		} {
			strict := size(mode, c.flags...)
			if strict.Workers() <= plain.Workers() {
				t.Errorf("%v, %v: %s, without %s", mode, c.flags, strict.Size, plain.Size)
			}
			if !strings.Contains(strict.Reason, "by "+c.rule) {
				t.Errorf("%v, %v: the reason is %q", mode, c.flags, strict.Reason)
			}
		}
	}
	var text strings.Builder
	if fanned := size(auto, "--fan-out=10", "--duration=80s"); fanned.SLO != "ttft:p99.9<500ms,tpot:p99.9<20ms" {
		t.Errorf("the SLO of each of ten calls is %s", fanned.SLO)
	} else if err := fanned.Write(&text); err != nil || !strings.Contains(text.String(), "within ttft:p99.9<500ms,tpot:p99.9<20ms of each of 10 calls\n") {
		t.Errorf("%v: %s", err, text.String())
	}
}

// TestBurst: what waits after a burst is what the pool did not serve while it lasted.
func TestBurst(t *testing.T) {
	longtest.OneGoroutine(t)
	for _, c := range []struct {
		flags []string
		most  string // (length + drain) / (times·length + drain)
	}{
		{nil, "0.86"},                   // 6/7
		{[]string{"--burst=1"}, "1.00"}, // none
		{[]string{"--burst=3", "--burst-length=10s"}, "0.43"},                    // 15/35
		{[]string{"--burst=2", "--burst-length=1h", "--burst-drain=1s"}, "0.50"}, // nothing waits
	} {
		made, err := plan.Make(t.Context(), question(t, with(append([]string{"--rate=5", "--duration=10s", "--slo=ttft:p50<500ms"}, c.flags...)...)...), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range made.Constraints {
			if of.Name == "burst" && !strings.HasSuffix(of.Rule, "(utilisation of at most "+c.most+")") {
				t.Errorf("%v: %s, want at most %s", c.flags, of.Rule, c.most)
			}
		}
	}
}

// Equal questions have equal answers. They cost what the price says.
func TestAnswersRepeat(t *testing.T) {
	longtest.OneGoroutine(t)
	var texts []string
	for range 2 {
		q := question(t, with("--rate=30", briefly, "--slo=ttft:p99<300ms", "--seed=4")...)
		q.WorkerPrice = 2
		made, err := plan.Make(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
		// 30 answers of 40 tokens a second are 4.32 million an hour.
		if want := 2 * float64(made.Workers()) / 4.32; made.HourCost != 2*float64(made.Workers()) || made.MillionTokensCost < 0.999*want || made.MillionTokensCost > 1.001*want {
			t.Errorf("%v an hour, %v for a million tokens, want %v", made.HourCost, made.MillionTokensCost, want)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("%s\n%s", texts[0], texts[1])
	}
}

// TestNotFewer: a plan says what one worker fewer would miss, all of which do both phases.
func TestNotFewer(t *testing.T) {
	longtest.OneGoroutine(t)
	for says, flags := range map[string][]string{
		"1 worker that does both phases would miss the SLO\n":                {"--rate=20", "--slo=ttft:p99<400ms,tpot:p99<10ms"},
		"1 worker that does both phases would break the rule of utilisation": {"--rate=25", "--slo=ttft:p99<400ms,tpot:p99<10ms"},
	} {
		made, err := plan.Make(t.Context(), question(t, with(append(flags, briefly)...)...), nil)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := made.Write(&text); err != nil || !strings.Contains(text.String(), says) {
			t.Errorf("%v: want %q in\n%s", err, says, text.String())
		}
	}
}

// Where workers that do both phases need fewer, the plan says so, and a plan in mode aggregated
// comes to the same number.
func TestBothPhases(t *testing.T) {
	longtest.OneGoroutine(t)
	for rate, fewer := range map[string]bool{"20": true, "60": false} {
		testBothPhases(t, fewer, "--rate="+rate, briefly, "--slo=ttft:p99<2s,tpot:p99<60ms", "--max-utilisation=0.9", "--burst=1")
	}
	testBothPhases(t, true, "--rate=20", "--slo=ttft:p99<2s,tpot:p99<60ms") // at length
}

func testBothPhases(t *testing.T, fewer bool, flags ...string) {
	t.Helper()
	made, err := plan.Make(t.Context(), question(t, with(flags...)...), nil)
	if err != nil {
		t.Fatal(err)
	}
	q := question(t, with(flags...)...)
	q.Mode = inferencev1.Mode_MODE_AGGREGATED
	only, err := plan.Make(t.Context(), q, nil)
	if err != nil {
		t.Fatal(err)
	}
	if only.Prefill != 0 || only.Decode < 1 || only.Mode != "aggregated" {
		t.Errorf("%+v", only.Size)
	}
	at := func(p *plan.Plan) *plan.Trial {
		i := slices.IndexFunc(p.Trials, func(t *plan.Trial) bool { return t.Size == only.Size })
		return p.Trials[i]
	}
	if fewer && *at(made).TTFTP99 != *at(only).TTFTP99 {
		t.Errorf("%s: the simulation is another than in mode aggregated", only.Size)
	}
	switch {
	case (only.Workers() < made.Workers()) != fewer:
		t.Errorf("%v: %s, and in mode aggregated %d", flags, made.Size, only.Decode)
	case only.Workers() < made.Workers() && made.BothPhases != only.Decode:
		t.Errorf("%s, or %d that do both; mode aggregated takes %d", made.Size, made.BothPhases, only.Decode)
	case only.Workers() >= made.Workers() && made.BothPhases != 0:
		t.Errorf("%s, or %d that do both; mode aggregated takes %d", made.Size, made.BothPhases, only.Decode)
	}
}

// The page has the curve with the planned rate on it.
func TestReport(t *testing.T) {
	longtest.OneGoroutine(t)
	began := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	trace := filepath.Join(t.TempDir(), "trace.csv")
	var text strings.Builder
	text.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for i := range 1500 {
		text.WriteString(began.Add(time.Duration(i)*40*time.Millisecond).Format("2006-01-02 15:04:05.0000000") + ",200,40\n")
	}
	if err := os.WriteFile(trace, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, load := range [][]string{with("--rate=25", briefly), append([]string{"--trace=" + trace}, steps[:3]...)} {
		made, err := plan.Make(t.Context(), question(t, append(load, "--slo=ttft:p90<200ms,tpot:p90<20ms")...), nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := made.Report(t.Context(), began)
		if err != nil {
			t.Fatal(err)
		}
		if r.Planned == nil || *r.Planned < 24.9 || *r.Planned > 25.1 || r.Rate != *r.Planned || len(r.Search.Steps) < 8 {
			t.Fatalf("planned are %v, the figures are at %v", r.Planned, r.Rate)
		}
		first, last := r.Search.Steps[0].Summary, r.Search.Steps[len(r.Search.Steps)-1].Summary
		if *last.TTFT.P90 <= *first.TTFT.P90 {
			t.Errorf("TTFT does not rise with the rate: %v, %v ms", *first.TTFT.P90, *last.TTFT.P90)
		}
		var page strings.Builder
		if err := report.WriteHTML(&page, r); err != nil || !strings.Contains(page.String(), `"planned":25`) {
			t.Errorf("%v: the page does not mark the planned rate", err)
		}
	}
}

// TestPartOfATrace: what a trace has after --duration does not count.
func TestPartOfATrace(t *testing.T) {
	longtest.OneGoroutine(t)
	trace := filepath.Join(t.TempDir(), "trace.csv")
	began := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for i := range 600 {
		at := time.Duration(i) * 40 * time.Millisecond
		text += fmt.Sprintf("%s,%d,20\n", began.Add(at).Format("2006-01-02 15:04:05.0000000"), 100+int(at/(10*time.Second))*100)
	}
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := plan.Make(t.Context(), question(t, append([]string{"--trace=" + trace, "--duration=9960ms", "--slo=ttft:p90<500ms"}, steps[:3]...)...), nil)
	if err != nil || math.Round(made.Traffic.PromptTokens) != 100 {
		t.Errorf("%v prompt tokens on average, want 100: %v", made.Traffic.PromptTokens, err)
	}
}

// A profile need not name its model: 'up' takes it as well.
func TestProfileWithoutModel(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(profile, []byte(`{"version":1,"prefill":[{"base_ms":1}],"decode":[{"base_ms":1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := asked(t, "--rate=1", "--slo=ttft:p99<1s", "--model=tiny", "--profile="+profile); err != nil {
		t.Error(err)
	}
}

// What cannot be planned is refused in one line that says what to do.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := file("empty.csv", "")
	onlyHead := file("head.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n")
	profile := file("p.json", `{"version":1,"model":"bench-8b","prefill":[{"base_ms":1}],"decode":[{"base_ms":1}]}`)
	broken := file("broken.json", `{"version":1`)
	stores := file("stores.yaml", "model: tiny\npools:\n  d: {role: decode}\n  s: {role: store}\ntraffic: {}\n")
	pairs := file("pairs.yaml", "model: tiny\npools: {d: {role: decode}, p: {role: prefill}}\ntraffic: {}\nnetwork:\n  pairs: [{between: [p-1, d-1], latency: 1ms}]\n")
	slo := "--slo=ttft:p99<1s"
	for _, c := range []struct {
		name  string
		flags []string
		says  string
	}{
		{"no SLO", []string{"--rate=1"}, "--slo: a plan needs an objective, such as ttft:p99<500ms"},
		{"empty trace", []string{"--trace=" + empty, slo}, "empty"},
		{"trace without requests", []string{"--trace=" + onlyHead, slo}, "no requests"},
		{"profile of another model", []string{"--rate=1", slo, "--profile=" + profile, "--model=tiny"}, "is a profile of bench-8b, but the model is tiny: pass --model bench-8b, or --profile-model bench-8b"},
		{"another model than the profile's", []string{"--rate=1", slo, "--profile=" + profile, "--model=tiny", "--profile-model=bench-1b"}, "is a profile of bench-8b, not of bench-1b"},
		{"broken profile", []string{"--rate=1", slo, "--profile=" + broken}, "the file is truncated"},
		{"no profile", []string{"--rate=1", slo, "--profile=" + filepath.Join(dir, "none")}, "no such file"},
		{"entry without a file", []string{"--rate=1", slo, "--entry=facebook/opt-13b"}, "add --profile FILE"},
		{"two kinds of step times", []string{"--rate=1", slo, "--profile=" + profile, "--simulated-base-ms=1"}, "exclude one another"},
		{"unknown model", []string{"--rate=1", slo, "--model=bench-8"}, `did you mean "bench-8b"?`},
		{"scenario and flags", []string{"--rate=1", slo, "--scenario=s.yaml", "--kv-memory=1GiB"}, "--kv-memory: the scenario says that"},
		{"scenario with stores", []string{"--rate=1", slo, "--scenario=" + stores}, "stores.yaml:4: pool s has block stores"},
		{"scenario with pairs", []string{"--rate=1", slo, "--scenario=" + pairs}, "pairs.yaml:5: \"network.pairs\" is for hosts that this file names"},
		{"no memory for a request", []string{"--rate=1", slo, "--prompt-tokens=1000", "--kv-memory=1MiB", "--model=bench-8b"}, "--kv-memory"},
		{"utilisation", []string{"--rate=1", slo, "--max-utilisation=85"}, "--max-utilisation: 85 must be above 0 and below 1"},
		{"burst", []string{"--rate=1", slo, "--burst=0.5"}, "--burst: 0.5 is outside 1 to 1000"},
		{"drain", []string{"--rate=1", slo, "--burst-drain=0s"}, "--burst-drain"},
		{"deviations", []string{"--rate=1", slo, "--deviations=-1"}, "--deviations"},
		{"fan-out", []string{"--rate=1", slo, "--fan-out=0"}, "--fan-out: 0 is outside 1 to 1000"},
		{"far too many calls", []string{"--rate=10", slo, "--fan-out=900"}, "--fan-out: for the p99 of 900 calls each needs its p99.9989"},
		{"longer than the context", []string{"--rate=10", slo, "--prompt-tokens=600"}, "all requests were cut to fit the context of 512 tokens: plan for shorter ones"},
		{"too many", with("--rate=1000000", slo), "the prompts alone take more than 1000 workers"},
		{"too short", []string{"--rate=10", slo, "--duration=5s", "--prompt-tokens=100"}, "of the 368 that it takes: pass a longer --duration"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, err := asked(t, c.flags...)
			if err == nil {
				_, err = plan.Make(t.Context(), q, nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, want one line with %q", err, c.says)
			}
		})
	}
}
