package compare_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/compare"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

func pointer[T any](v T) *T { return &v }

// served is the report of a simulated run on a single FIFO server: Poisson arrivals,
// exponential prefill, steady tokens. load is the share of capacity; slower stretches all
// times.
func served(seed uint64, load, slower float64) *report.Report {
	r := rand.New(rand.NewPCG(seed, 1))
	const rate, seconds, tokens = 20.0, 120.0, 5
	run := &record.Run{Offered: rate, To: time.Duration(seconds * float64(time.Second))}
	free, at := 0.0, 0.0
	for i := 0; ; i++ {
		if at += r.ExpFloat64() / rate; at > seconds {
			break
		}
		free = max(free, at) + slower*r.ExpFloat64()*load/rate
		moment := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
		one := &record.Record{
			Index: i, Due: moment(at), Dispatched: moment(at), Sent: moment(at), Admitted: moment(at),
			Outcome: record.Completed, PromptTokens: 10, OutputTokens: tokens,
		}
		last := free
		for range tokens {
			one.Arrivals = append(one.Arrivals, record.Arrival{At: moment(last), Tokens: 1})
			last += slower * 0.01 * (1 + 0.2*r.Float64())
		}
		one.End = one.Last()
		run.Records = append(run.Records, one)
	}
	// Service is FIFO, so both counts only increase.
	due, ended := 0, 0
	for s := 0.0; s <= seconds; s += 0.25 {
		now := time.Duration(s * float64(time.Second))
		for due < len(run.Records) && run.Records[due].Due <= now {
			due++
		}
		for ended < len(run.Records) && run.Records[ended].End <= now {
			ended++
		}
		run.Samples = append(run.Samples, record.Sample{At: now, Due: due, Ended: ended})
	}
	return &report.Report{
		Schema: report.Schema, Name: "a", Target: client.Description{Kind: "tandem", Model: "m"}, Workload: []string{"poisson"},
		Figures: report.Figures{Rate: rate, Summary: *measure.Summarize(run, measure.Options{})},
	}
}

// Two runs of one server rarely differ significantly, even if requests are correlated; a
// server that is 25% slower is detected.
func TestFalsePositives(t *testing.T) {
	const pairs = 30
	for _, test := range []struct {
		name         string
		load, slower float64
		most, least  float64
	}{
		{"hardly loaded", 0.1, 1, 0.05, 0},
		{"half loaded", 0.5, 1, 0.05, 0},
		{"well loaded", 0.7, 1, 0.07, 0},
		{"half loaded, a quarter slower", 0.5, 1.25, 1, 0.98},
		{"half loaded, a quarter faster", 0.5, 0.8, 0.02, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			found, changes := 0, 0
			for i := range uint64(pairs) {
				c := compare.Reports(served(2*i, test.load, 1), served(2*i+1, test.load, test.slower), compare.Options{})
				if c.Regressions > 0 || test.slower == 1 && c.Improvements > 0 {
					found++
				}
				changes += len(c.Changes)
			}
			share := float64(found) / pairs
			t.Logf("significant in %d of %d pairs, of %d figures each", found, pairs, changes/pairs)
			if share > test.most || share < test.least {
				t.Errorf("%.1f%% of the pairs, want %.0f%% to %.0f%%", 100*share, 100*test.least, 100*test.most)
			}
		})
	}
}

// of is a report with one latency and one rate.
func of(p99 float64, ci [2]float64, rps float64, rpsCI [2]float64) *report.Report {
	return &report.Report{
		Schema: report.Schema,
		Figures: report.Figures{Summary: measure.Summary{
			Verdict: measure.Stable, TTFT: &measure.Distribution{Count: 1000, P99: pointer(p99), CI: map[string][2]float64{"p99": ci}},
			Goodput: rps, RateCI: map[string][2]float64{"goodput_rps": rpsCI},
		}},
	}
}

func TestSignificance(t *testing.T) {
	a := of(100, [2]float64{95, 105}, 10, [2]float64{9.9, 10.1})
	sure := of(100, [2]float64{99.9, 100.1}, 10, [2]float64{9.99, 10.01})
	noInterval := of(500, [2]float64{}, 10, [2]float64{9.9, 10.1})
	noInterval.TTFT.CI = nil
	zero := of(0, [2]float64{0, 0}, 0, [2]float64{0, 0})
	for _, test := range []struct {
		name      string
		a, b      *report.Report
		threshold float64
		latency   compare.Verdict
		rate      compare.Verdict
	}{
		{"the same", a, a, 0, compare.Same, compare.Same},
		{"slower", a, of(120, [2]float64{115, 125}, 8, [2]float64{7.9, 8.1}), 0, compare.Regression, compare.Regression},
		{"faster", a, of(80, [2]float64{75, 85}, 12, [2]float64{11, 13}), 0, compare.Improvement, compare.Improvement},
		{"intervals overlap", a, of(120, [2]float64{104, 140}, 9, [2]float64{8, 10}), 0, compare.Same, compare.Same},
		{"sure but small", sure, of(104, [2]float64{103.9, 104.1}, 9.6, [2]float64{9.59, 9.61}), 0, compare.Same, compare.Same},
		{"apart, but not for as many figures", sure, of(120, [2]float64{101, 139}, 12, [2]float64{10.1, 13.9}), 0, compare.Same, compare.Same},
		{"sure and above another threshold", sure, of(104, [2]float64{103.9, 104.1}, 9.6, [2]float64{9.59, 9.61}), 0.01, compare.Regression, compare.Regression},
		{"no interval", a, noInterval, 0, compare.Unknown, compare.Same},
		{"from nothing", zero, a, 0, compare.Regression, compare.Improvement},
		{"microseconds", of(0.002, [2]float64{0.002, 0.002}, 1, [2]float64{1, 1}), of(0.004, [2]float64{0.004, 0.004}, 1, [2]float64{1, 1}), 0, compare.Same, compare.Same},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := compare.Reports(test.a, test.b, compare.Options{Threshold: test.threshold})
			got := map[string]compare.Verdict{}
			regressions := 0
			for _, change := range c.Changes {
				got[change.Figure] = change.Verdict
				if change.Verdict == compare.Regression {
					regressions++
				}
			}
			if got["ttft_ms.p99"] != test.latency || got["goodput_rps"] != test.rate || c.Regressions != regressions {
				t.Errorf("latency %s, rate %s, %d regressions", got["ttft_ms.p99"], got["goodput_rps"], c.Regressions)
			}
		})
	}
}

// Nonprimary figures are classified and do not count as regressions.
func TestOtherFiguresDoNotFail(t *testing.T) {
	a, b := of(1, [2]float64{1, 1}, 1, [2]float64{1, 1}), of(1, [2]float64{1, 1}, 1, [2]float64{1, 1})
	for r, p95 := range map[*report.Report]float64{a: 10, b: 20} {
		r.TTFT.P95, r.TTFT.CI["p95"] = &p95, [2]float64{p95 * 0.99, p95 * 1.01}
	}
	c := compare.Reports(a, b, compare.Options{})
	if c.Regressions != 0 || c.Others != 1 {
		t.Errorf("%d regressions, %d others", c.Regressions, c.Others)
	}
	for _, change := range c.Changes {
		if decides := change.Figure != "ttft_ms.p95" && change.Figure != "completed_rps" && change.Figure != "output_tokens_per_s"; change.Primary != decides {
			t.Errorf("%s decides: %v", change.Figure, change.Primary)
		}
		if (change.Verdict == compare.Worse) != (change.Figure == "ttft_ms.p95") {
			t.Errorf("%s is %s", change.Figure, change.Verdict)
		}
	}
}

// For steps close to capacity, the verdict changes by chance.
func TestVerdictThatTurnedByChance(t *testing.T) {
	a, b := of(1, [2]float64{1, 1}, 1, [2]float64{1, 1}), of(1, [2]float64{1, 1}, 1, [2]float64{1, 1})
	b.Verdict = measure.Overloaded
	a.BacklogSlope, a.BacklogSlopeCI = 0.1, [2]float64{-0.1, 0.3}
	b.BacklogSlope, b.BacklogSlopeCI = 0.4, [2]float64{0.2, 0.6}
	if c := compare.Reports(a, b, compare.Options{}); c.Regressions != 0 {
		t.Errorf("%+v", c.Changes)
	}
	b.BacklogSlope, b.BacklogSlopeCI = 4, [2]float64{3.8, 4.2}
	if c := compare.Reports(a, b, compare.Options{}); c.Regressions != 1 {
		t.Errorf("%+v", c.Changes)
	}
	b.BacklogSlopeCI, b.Requests, b.Rejected = [2]float64{-4, 5}, 100, 10
	if c := compare.Reports(a, b, compare.Options{}); c.Regressions != 1 {
		t.Errorf("%+v", c.Changes)
	}
}

// Two sweeps of one server rarely differ significantly in any step; a server that is 25%
// slower is detected.
func TestFalsePositivesOfSweeps(t *testing.T) {
	sweep := func(seed uint64, slower float64) *report.Report {
		var rates []float64
		for _, load := range []float64{0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.15} {
			rates = append(rates, 20*load)
		}
		searching := search.NewSweep(rates)
		r := &report.Report{Schema: report.Schema, Target: client.Description{Kind: "tandem", Model: "m"}}
		for i, rate := range rates {
			f := served(seed*100+uint64(i), rate/20, slower).Figures
			f.Rate = rate
			r.Runs = append(r.Runs, f)
			searching.Done(search.Step{Rate: rate, Summary: &f.Summary})
		}
		result := searching.Result()
		r.Search = &result
		return r
	}
	for _, test := range []struct {
		name               string
		slower             float64
		pairs, most, least int
	}{
		// 3 of 60 pairs differ, two by a verdict that changed at capacity.
		{"alike", 1, 10, 1, 0},
		{"a quarter slower", 1.25, 3, 3, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			found, changes, others := 0, 0, 0
			for i := range uint64(test.pairs) {
				c := compare.Reports(sweep(2*i, 1), sweep(2*i+1, test.slower), compare.Options{})
				changes, others = changes+len(c.Changes), others+c.Others
				if c.Regressions > 0 || test.slower == 1 && c.Improvements > 0 {
					found++
					for _, change := range c.Changes {
						if test.slower == 1 && change.Primary && (change.Verdict == compare.Regression || change.Verdict == compare.Improvement) {
							t.Logf("pair %d: %s at %v: %v %v, %v %v, %s", i, change.Figure, change.Rate, change.A, change.ACI, change.B, change.BCI, change.Words)
						}
					}
				}
			}
			t.Logf("significant in %d of %d pairs, of %d figures each, %d others", found, test.pairs, changes/test.pairs, others)
			if found > test.most || found < test.least {
				t.Errorf("%d of %d pairs, want %d to %d", found, test.pairs, test.least, test.most)
			}
		})
	}
}

// ending is the report of a run of 30 seconds in which so many requests ended, one at a time.
func ending(requests int) *report.Report {
	run := &record.Run{Concurrency: 1, To: 30 * time.Second, Drained: 30 * time.Second}
	for i := range requests {
		at := time.Duration(i) * run.To / time.Duration(requests)
		end := at + run.To/time.Duration(requests+1)
		run.Records = append(run.Records, &record.Record{
			Index: i, Due: at, Dispatched: at, Sent: at, Admitted: at, End: end, Outcome: record.Completed,
			OutputTokens: 1, Arrivals: []record.Arrival{{At: end, Tokens: 1}},
		})
	}
	return &report.Report{Schema: report.Schema, Figures: report.Figures{Concurrency: 1, Summary: *measure.Summarize(run, measure.Options{})}}
}

// A rate of few requests has an interval too: fewer by far are a regression, not unknown.
func TestFewRequests(t *testing.T) {
	for _, test := range []struct {
		a, b                      int
		regressions, improvements int
	}{
		{100, 4, 1, 0},
		{4, 100, 0, 1},
		{8, 4, 0, 0},
		{4, 1, 0, 0},
	} {
		c := compare.Reports(ending(test.a), ending(test.b), compare.Options{})
		if c.Regressions != test.regressions || c.Improvements != test.improvements {
			t.Errorf("%d requests, then %d: %d regressions, %d improvements: %+v", test.a, test.b, c.Regressions, c.Improvements, c.Changes)
		}
	}
}

func TestVerdictThatTurnedIsARegression(t *testing.T) {
	a, b := of(1, [2]float64{1, 1}, 1, [2]float64{1, 1}), of(1, [2]float64{1, 1}, 1, [2]float64{1, 1})
	b.Verdict = measure.Overloaded
	if c := compare.Reports(a, b, compare.Options{}); c.Regressions != 1 || c.Changes[0].Figure != "verdict" {
		t.Errorf("%+v", c)
	}
	if c := compare.Reports(b, a, compare.Options{}); c.Improvements != 1 || c.Regressions != 0 {
		t.Errorf("%+v", c)
	}
	b.Verdict = measure.None
	if c := compare.Reports(a, b, compare.Options{}); c.Regressions != 0 {
		t.Errorf("%+v", c)
	}
}

func TestSearches(t *testing.T) {
	found := func(rate float64, latencies map[float64]float64) *report.Report {
		r := of(1, [2]float64{1, 1}, 1, [2]float64{1, 1})
		r.Search = &search.Result{MaxRate: &rate, Bracket: &[2]float64{rate, rate * 1.05}, Knee: pointer(rate / 2)}
		for at, p99 := range latencies {
			f := of(p99, [2]float64{p99 * 0.99, p99 * 1.01}, at, [2]float64{at, at}).Figures
			f.Rate = at
			r.Runs = append(r.Runs, f)
		}
		return r
	}
	a := found(10, map[float64]float64{1: 100, 2: 110, 8: 200})
	c := compare.Reports(a, found(8, map[float64]float64{1: 100, 8: 400, 16: 1}), compare.Options{})
	regressions := map[string]float64{}
	for _, change := range c.Changes {
		if change.Rate == 2 || change.Rate == 16 {
			t.Errorf("compared at %v", change.Rate)
		}
		if change.Verdict == compare.Regression {
			regressions[change.Figure] = change.Rate
		}
	}
	if len(regressions) != 2 || regressions["ttft_ms.p99"] != 8 {
		t.Errorf("%v", regressions)
	}
	if _, ok := regressions["max_rps"]; !ok {
		t.Error("the maximum is no regression")
	}
	none := found(1, nil)
	none.Search.MaxRate, none.Search.Bracket = nil, nil
	none.Search.Steps = []search.Step{{Rate: 1}}
	if c := compare.Reports(a, none, compare.Options{}); c.Regressions != 1 {
		t.Errorf("%+v", c.Changes)
	}
	for rate, want := range map[float64]compare.Verdict{
		9.8: compare.Same, 9: compare.Unknown, 8.8: compare.Unknown, 11.4: compare.Unknown, 8: compare.Regression, 12: compare.Improvement,
	} {
		if c := compare.Reports(a, found(rate, nil), compare.Options{}); c.Changes[0].Figure != "max_rps" || c.Changes[0].Verdict != want || c.Changes[0].ACI != nil {
			t.Errorf("from 10 to %v: %+v, want %s", rate, c.Changes[0], want)
		}
	}
	limited := found(5, nil)
	limited.Search.Limited = "at least 5/s; the client was the bottleneck at 10/s"
	if c := compare.Reports(a, limited, compare.Options{}); c.Regressions != 0 {
		t.Errorf("at least 5: %+v", c.Changes[0])
	}
	doubtful := found(5, nil)
	doubtful.Search.PassedAbove = []float64{9}
	if c := compare.Reports(a, doubtful, compare.Options{}); c.Regressions != 0 {
		t.Errorf("5, although 9 passed: %+v", c.Changes[0])
	}
}

// A search that never failed does not say that the server can do no more.
func TestSearchesThatNeverFailed(t *testing.T) {
	const passed, failed, interrupted = 'p', 'f', 'i'
	of := func(s *search.Search, steps string) *report.Report {
		r := &report.Report{Schema: report.Schema, Interrupted: strings.ContainsRune(steps, interrupted)}
		for _, step := range steps {
			rate, _ := s.Next()
			summary := &measure.Summary{Verdict: measure.Stable}
			if step == failed {
				summary.Verdict = measure.Overloaded
			}
			s.Done(search.Step{Rate: rate, Summary: summary, Interrupted: step == interrupted})
		}
		r.Search = new(s.Result())
		return r
	}
	sweep := func(rates, steps string) *report.Report {
		all, err := search.ParseRates(rates)
		if err != nil {
			t.Fatal(err)
		}
		return of(search.NewSweep(all), steps)
	}
	findMax := func(start float64, steps string) *report.Report { return of(search.NewFindMax(start), steps) }
	for _, test := range []struct {
		name                      string
		a, b                      *report.Report
		regressions, improvements int
	}{
		{"two sweeps that passed at all rates", sweep("1..100/6", "pppppp"), sweep("1..50/6", "pppppp"), 0, 0},
		{"a sweep that failed", sweep("1..100/6", "pppppp"), sweep("1..50/6", "pppfff"), 1, 0},
		{"a sweep that failed at all rates", sweep("1..100/6", "pppppp"), sweep("1..50/6", "ffffff"), 1, 0},
		{"a sweep that failed at higher rates only", sweep("1,2,10", "ppp"), sweep("20,50", "ff"), 0, 0},
		{"interrupted in its first step", findMax(10, "pfffppp"), findMax(10, "i"), 0, 0},
		{"interrupted on the way up", findMax(10, "ppppff"), findMax(10, "pi"), 0, 0},
		{"interrupted on the way down", findMax(2, "ppff"), findMax(10, "fi"), 0, 0},
		{"failed below what was held", findMax(10, "pff"), findMax(10, "fi"), 1, 0},
	} {
		for _, swapped := range []bool{false, true} {
			a, b, want := test.a, test.b, [2]int{test.regressions, test.improvements}
			if swapped {
				a, b, want = b, a, [2]int{want[1], want[0]}
			}
			if c := compare.Reports(a, b, compare.Options{}); [2]int{c.Regressions, c.Improvements} != want {
				t.Errorf("%s, swapped %v: %d regressions, %d improvements: %+v", test.name, swapped, c.Regressions, c.Improvements, c.Changes)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	base := func() *report.Report {
		r := of(1, [2]float64{1, 1}, 1, [2]float64{1, 1})
		r.Target, r.Workload, r.OfferedRPS = client.Description{Kind: "tandem", Model: "m"}, []string{"poisson"}, 10
		return r
	}
	if c := compare.Reports(base(), base(), compare.Options{}); len(c.Warnings) != 0 {
		t.Errorf("%q", c.Warnings)
	}
	for want, change := range map[string]func(*report.Report){
		"formats differ":                      func(r *report.Report) { r.Schema = "tandem.bench.serve/1.1" },
		"different protocols":                 func(r *report.Report) { r.Target.Kind = "openai" },
		"the models differ":                   func(r *report.Report) { r.Target.Model = "n" },
		"the workloads differ":                func(r *report.Report) { r.Workload = nil },
		"the objectives differ":               func(r *report.Report) { r.SLO = "ttft:p99<1s" },
		"machines differ":                     func(r *report.Report) { r.Host.Cores = 64 },
		"is a search over rates":              func(r *report.Report) { r.Search = &search.Result{} },
		"closed loop, the other open":         func(r *report.Report) { r.Concurrency = 4 },
		"the offered rates differ":            func(r *report.Report) { r.OfferedRPS = 12 },
		"was interrupted":                     func(r *report.Report) { r.Interrupted = true },
		"the client was the bottleneck: late": func(r *report.Report) { r.Client.Bottleneck = "late" },
	} {
		b := base()
		change(b)
		if c := compare.Reports(base(), b, compare.Options{}); len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], want) {
			t.Errorf("%q, want %q", c.Warnings, want)
		}
	}
}

// Two runs of one command differ in the seed that was drawn, and in how long a search sent each rate. Of
// workloads that differ the warning has the lines that do.
func TestWorkloads(t *testing.T) {
	of := func(seed uint64, seconds, prompts string) *report.Report {
		spec := loadtest.DefaultConfig().Workload
		spec.Seed = seed
		var err error
		if spec.PromptTokens, err = workload.ParseLengths(prompts); err != nil {
			t.Fatal(err)
		}
		if err := spec.Validate(); err != nil {
			t.Fatal(err)
		}
		return &report.Report{Schema: report.Schema, Workload: append(spec.Describe(workload.Params{VocabularySize: 9}), "each rate was sent for "+seconds+" s, after a warm-up of 3s")}
	}
	a := of(1, "30", "512")
	if c := compare.Reports(a, of(2, "30 s to 60", "512"), compare.Options{}); len(c.Warnings) != 0 {
		t.Errorf("%q", c.Warnings)
	}
	c := compare.Reports(a, of(2, "60", "256"), compare.Options{})
	if want := `the workloads differ: ["lengths: prompts of 512 tokens, answers of 128, exactly"] and ["lengths: prompts of 256 tokens, answers of 128, exactly"]`; !slices.Equal(c.Warnings, []string{want}) {
		t.Errorf("%q, want %q", c.Warnings, want)
	}
}

func TestTableAndJSON(t *testing.T) {
	a, b := of(100, [2]float64{95, 105}, 10, [2]float64{9.9, 10.1}), of(150, [2]float64{145, 155}, 10, [2]float64{9.9, 10.1})
	a.Name, b.Command = "before", []string{"bench", "serve"}
	b.Target.Kind = "openai"
	c := compare.Reports(a, b, compare.Options{})
	var table strings.Builder
	if err := c.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"A  before", "B  bench serve", "warning: the servers", "ttft_ms.p99", "100 [95, 105]", "150 [145, 155]", "+50.0%", "REGRESSION", "1 significant regressions and 0 improvements of the figures that decide, 0 changes of others", "above 5%"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back compare.Comparison
	if err := json.Unmarshal(text, &back); err != nil || back.Regressions != 1 || back.Schema != compare.Schema || math.Abs(*back.Changes[0].Percent-50) > 1e-9 {
		t.Errorf("%s: %v", text, err)
	}
	if err := c.WriteTable(broken{}); !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
}

var errBroken = errors.New("no space left")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }
