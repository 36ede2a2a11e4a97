package search_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
)

func pointer[T any](v T) *T { return &v }

// passing, failing and barely are results of a step; barely misses its bound by little.
func passing() *measure.Summary { return &measure.Summary{Verdict: measure.Stable} }

func failing() *measure.Summary {
	return &measure.Summary{Verdict: measure.Overloaded, Reason: "the backlog grew"}
}

func barely() *measure.Summary {
	return &measure.Summary{Verdict: measure.Stable, Objectives: []measure.Objective{{Term: "ttft:p99<500ms", Measured: pointer(510.0)}}}
}

// drive runs a search against an oracle and returns the rates that it asked for.
func drive(t interface{ Fatalf(string, ...any) }, s *search.Search, oracle func(rate float64) *measure.Summary) []float64 {
	var asked []float64
	for {
		rate, ok := s.Next()
		if !ok {
			return asked
		}
		if again, still := s.Next(); again != rate || !still {
			t.Fatalf("Next says %v, then %v", rate, again)
		}
		if len(asked) > 250 {
			t.Fatalf("no end after %v", asked)
		}
		asked = append(asked, rate)
		s.Done(search.Step{Rate: rate, Summary: oracle(rate)})
	}
}

// Every threshold is found within the tolerance, and within the documented number of
// steps.
func TestFindMaxFindsTheThreshold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := search.FindMaxOptions{
			Start:     rapid.Float64Range(0.01, 100).Draw(t, "start"),
			Factor:    rapid.Float64Range(1.5, 10).Draw(t, "factor"),
			Tolerance: rapid.Float64Range(0.01, 0.5).Draw(t, "tolerance"),
			MaxSteps:  100,
		}
		threshold := o.Start * math.Exp(rapid.Float64Range(-6.5, 6.5).Draw(t, "threshold"))
		s := search.NewFindMaxWith(o)
		asked := drive(t, s, func(rate float64) *measure.Summary {
			if rate <= threshold {
				return passing()
			}
			return failing()
		})
		r := s.Result()
		if r.MaxRate == nil || *r.MaxRate > threshold || threshold > *r.MaxRate*(1+o.Tolerance)*1.0001 {
			t.Fatalf("found %+v of %v after %v", r, threshold, asked)
		}
		if r.Bracket == nil || r.Bracket[0] != *r.MaxRate || r.Bracket[1] < threshold || *r.Breaking != r.Bracket[1] {
			t.Fatalf("bracket %v, breaking %v of %v", r.Bracket, *r.Breaking, threshold)
		}
		most := math.Abs(math.Log(threshold/o.Start)/math.Log(o.Factor)) + math.Log2(max(1, math.Log(o.Factor)/math.Log(1+o.Tolerance))) + 4
		if float64(len(asked)) > most+1 {
			t.Fatalf("%d steps, at most %.1f: %v", len(asked), most, asked)
		}
		if len(r.Steps) != len(asked) {
			t.Fatalf("%d of %d steps kept", len(r.Steps), len(asked))
		}
		for i := 1; i < len(r.Steps); i++ {
			if r.Steps[i].Rate < r.Steps[i-1].Rate {
				t.Fatalf("steps out of order")
			}
		}
	})
}

// Whatever the results, a search ends within its steps and bounds. A rate that it says
// passed has passed at least half of its runs.
func TestFindMaxEndsWhateverItHears(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := search.FindMaxOptions{
			Start: 8, Min: 0.5, Max: 1000, MaxSteps: rapid.IntRange(1, 40).Draw(t, "steps"),
			Repeats: rapid.IntRange(-1, 3).Draw(t, "repeats"),
		}
		s := search.NewFindMaxWith(o)
		answers := map[float64][2]int{}
		asked := drive(t, s, func(rate float64) *measure.Summary {
			if rate < o.Min || rate > o.Max {
				t.Fatalf("asked for %v", rate)
			}
			a := answers[rate]
			switch rapid.IntRange(0, 4).Draw(t, "answer") {
			case 4:
				return short()
			case 0:
				answers[rate] = [2]int{a[0], a[1] + 1}
				return failing()
			case 1:
				answers[rate] = [2]int{a[0], a[1] + 1}
				return barely()
			default:
				answers[rate] = [2]int{a[0] + 1, a[1]}
				return passing()
			}
		})
		if len(asked) > o.MaxSteps {
			t.Fatalf("%d steps of %d", len(asked), o.MaxSteps)
		}
		if r := s.Result(); r.MaxRate != nil && answers[*r.MaxRate][0] <= answers[*r.MaxRate][1] {
			t.Fatalf("%v passed %v", *r.MaxRate, answers[*r.MaxRate])
		}
	})
}

// Steps that narrowly fail by chance move the result little: the threshold is where half
// of the steps pass.
func TestFindMaxWithNoise(t *testing.T) {
	const runs, threshold = 400, 23.0
	within, steps := map[int]int{}, map[int]int{}
	for _, repeats := range []int{-1, 1} {
		for seed := range uint64(runs) {
			r := rand.New(rand.NewPCG(seed, 5))
			s := search.NewFindMaxWith(search.FindMaxOptions{Repeats: repeats})
			steps[repeats] += len(drive(t, s, func(rate float64) *measure.Summary {
				// One step in twenty misses its bound by chance, and more of them near the
				// threshold.
				margin := math.Log(threshold/rate)/0.05 + r.NormFloat64()
				switch {
				case margin < -2:
					return failing()
				case margin < 0 || r.Float64() < 0.05:
					return barely()
				}
				return passing()
			}))
			if got := s.Result().MaxRate; got != nil && math.Abs(math.Log(*got/threshold)) < 0.15 {
				within[repeats]++
			}
		}
	}
	t.Logf("within 15%%: %d of %d without repeats in %.1f steps, %d with in %.1f", within[-1], runs,
		float64(steps[-1])/runs, within[1], float64(steps[1])/runs)
	if within[1] < runs*95/100 {
		t.Errorf("%d of %d within 15%%", within[1], runs)
	}
	if within[-1] >= within[1] {
		t.Errorf("repeats do not help: %d without", within[-1])
	}
}

func TestFindMaxAtTheEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		oracle func(float64) *measure.Summary
		asked  []float64
		max    *float64
	}{
		{"nothing passes", func(float64) *measure.Summary { return failing() }, []float64{4, 2, 1, 0.5}, nil},
		{"everything passes", func(float64) *measure.Summary { return passing() }, []float64{4, 8, 16, 20, 20}, pointer(20.0)},
		{"nothing was measured", func(float64) *measure.Summary { return nil }, []float64{4, 4}, nil},
		{"every run is too short", func(float64) *measure.Summary { return short() }, []float64{4, 4}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := search.NewFindMaxWith(search.FindMaxOptions{Start: 4, Min: 0.5, Max: 20})
			if d := cmp.Diff(test.asked, drive(t, s, test.oracle)); d != "" {
				t.Error(d)
			}
			r := s.Result()
			if d := cmp.Diff(test.max, r.MaxRate); d != "" || r.Bracket != nil {
				t.Errorf("%+v, bracket %v", d, r.Bracket)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

func short() *measure.Summary {
	return &measure.Summary{Verdict: measure.None, Reason: "the window is too short"}
}

// Where the client is the bottleneck, a search ends with what passed below. It neither
// reports the client's limit as the server's nor tries higher rates.
func TestFindMaxWhereTheClientIsTheLimit(t *testing.T) {
	for _, test := range []struct {
		name    string
		from    float64 // the lowest rate at which the client is the bottleneck
		breaks  float64 // the lowest rate that fails
		asked   []float64
		max     *float64
		limited string
		bracket bool
	}{
		{"above what passed", 10, 100, []float64{4, 8, 16, 16, 8}, pointer(8.0), "at least 8/s; at 16/s the client was the bottleneck: it was late", false},
		{"from the first step on", 3, 100, []float64{4, 4, 2, 2}, pointer(2.0), "at least 2/s; at 4/s the client was the bottleneck: it was late", false},
		{"everywhere", 0, 100, []float64{4, 4, 2, 2, 1, 1, 0.5, 0.5}, nil, "at 0.5/s the client was the bottleneck: it was late", false},
		{"above what the server takes", 15, 3, []float64{4, 2, 2.828, 2.828}, pointer(2.828), "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := search.NewFindMaxWith(search.FindMaxOptions{Start: 4, Min: 0.5, Max: 64, Tolerance: 0.5})
			var asked []float64
			for rate, ok := s.Next(); ok; rate, ok = s.Next() {
				if asked = append(asked, rate); len(asked) > 50 {
					t.Fatalf("no end after %v", asked)
				}
				if s.Stretch() != 1 {
					t.Errorf("a longer step at %v does not help the client", rate)
				}
				step := search.Step{Rate: rate, Summary: passing()}
				switch {
				case rate >= test.from:
					step.Summary, step.Client = short(), "it was late"
				case rate >= test.breaks:
					step.Summary = failing()
				}
				s.Done(step)
			}
			if d := cmp.Diff(test.asked, asked); d != "" {
				t.Error(d)
			}
			r := s.Result()
			if d := cmp.Diff(test.max, r.MaxRate); d != "" || r.Limited != test.limited || (r.Bracket != nil) != test.bracket {
				t.Errorf("%s, limited %q, bracket %v", d, r.Limited, r.Bracket)
			}
			for _, step := range r.Steps {
				if step.Unknown != (step.Client != "") || step.Unknown && step.Passed {
					t.Errorf("%+v", step)
				}
			}
		})
	}
}

// A step that is too short for a verdict is repeated for twice as long. Only the repeat
// counts.
func TestFindMaxStretchesWhatIsTooShort(t *testing.T) {
	s := search.NewFindMaxWith(search.FindMaxOptions{Start: 4, Tolerance: 0.5, Max: 64})
	var stretched []float64
	drive(t, s, func(rate float64) *measure.Summary {
		times := s.Stretch()
		switch {
		case rate > 10:
			return failing()
		case rate == 8 && times == 1:
			return short()
		case times > 1:
			stretched = append(stretched, rate)
		}
		return passing()
	})
	r := s.Result()
	if r.MaxRate == nil || *r.MaxRate != 8 || r.Limited != "" || r.Bracket == nil || len(stretched) == 0 || stretched[0] != 8 {
		t.Errorf("%+v, bracket %v, stretched %v", r, r.Bracket, stretched)
	}
}

// A rate that passed once is run again. If it then fails, the search goes on below.
func TestFindMaxConfirms(t *testing.T) {
	s := search.NewFindMaxWith(search.FindMaxOptions{Start: 8, Tolerance: 0.5, MaxSteps: 50})
	times := map[float64]int{}
	drive(t, s, func(rate float64) *measure.Summary {
		times[rate]++
		if rate > 10 || rate == 8 && times[rate] > 1 {
			return failing()
		}
		return passing()
	})
	r := s.Result()
	if *r.MaxRate >= 8 || *r.MaxRate < 5 || times[*r.MaxRate] < 2 || r.Bracket[1] != 8 {
		t.Errorf("%+v, bracket %v, tried %v", r, *r.Bracket, times)
	}
}

func TestWhyAStepDidNotPass(t *testing.T) {
	objective := func(o measure.Objective) *measure.Summary {
		return &measure.Summary{Verdict: measure.Stable, Completed: 12, Objectives: []measure.Objective{{Term: "e2e:p50<9s", Met: true}, o}}
	}
	for want, summary := range map[string]*measure.Summary{
		"":                              objective(measure.Objective{Term: "ttft:p99<1s", Met: true}),
		"it was not measured":           nil,
		"OVERLOADED: the backlog grew":  failing(),
		"NONE: the window is too short": short(),
		"ttft:p99<2s: the percentile is a request that was not served":        objective(measure.Objective{Term: "ttft:p99<2s", Missed: true, Why: "the percentile is a request that was not served"}),
		"ttft:p99<500ms: measured 510 ms":                                     barely(),
		"ttft:p99<1s of class chat: 12 completed requests are too few for it": objective(measure.Objective{Term: "ttft:p99<1s", Class: "chat"}),
	} {
		s := search.NewSweep([]float64{1})
		s.Done(search.Step{Rate: 1, Summary: summary})
		if step := s.Result().Steps[0]; step.Why != want || step.Passed != (want == "") {
			t.Errorf("%v %q, want %q", step.Passed, step.Why, want)
		}
	}
}

func TestSweepKeepsWhatIsPastTheBreakingPoint(t *testing.T) {
	s := search.NewSweep([]float64{1, 2, 4, 8, 16, 32})
	latencies := map[float64]float64{1: 100, 2: 102, 4: 105, 8: 130, 16: 4000, 32: 9000}
	goodput := map[float64]float64{1: 1, 2: 2, 4: 4, 8: 7.5, 16: 3, 32: 0.5}
	asked := drive(t, s, func(rate float64) *measure.Summary {
		sum := &measure.Summary{Verdict: measure.Stable, Goodput: goodput[rate], TTFT: &measure.Distribution{Count: 1000, P99: pointer(latencies[rate])}}
		if rate > 8 {
			sum.Verdict = measure.Overloaded
		}
		return sum
	})
	r := s.Result()
	if len(asked) != 6 || len(r.Steps) != 6 || *r.MaxRate != 8 || *r.Breaking != 16 || *r.MaxGoodput != 8 || *r.Bracket != [2]float64{8, 16} || *r.Knee != 8 {
		t.Errorf("%+v", r)
	}
}

// A rate that passes above one that failed does not raise the rate that is held.
func TestSweepThatContradictsItself(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict map[float64]measure.Verdict
		max     *float64
		bracket *[2]float64
		above   []float64
	}{
		{"held below", map[float64]measure.Verdict{2: measure.Stable, 3: measure.None, 4: measure.Backlogged, 5: measure.Backlogged, 6: measure.Stable, 7: measure.None, 9: measure.Stable},
			pointer(2.0), &[2]float64{2, 4}, []float64{6, 9}},
		{"nothing held below", map[float64]measure.Verdict{2: measure.Overloaded, 4: measure.Stable, 8: measure.Overloaded}, nil, nil, []float64{4}},
		{"no contradiction", map[float64]measure.Verdict{2: measure.Stable, 3: measure.None, 4: measure.Stable, 8: measure.Overloaded}, pointer(4.0), &[2]float64{4, 8}, nil},
	} {
		s := search.NewSweep(slices.Sorted(maps.Keys(c.verdict)))
		drive(t, s, func(rate float64) *measure.Summary { return &measure.Summary{Verdict: c.verdict[rate]} })
		r := s.Result()
		got := []any{r.MaxRate, r.Bracket, r.PassedAbove}
		if d := cmp.Diff([]any{c.max, c.bracket, c.above}, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// The knee of known curves.
func TestKnee(t *testing.T) {
	rates, err := search.GeometricRates(1, 100, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		latency func(rate float64) float64
		low     float64
		high    float64
	}{
		{"flat", func(float64) float64 { return 100 }, 0, 0},
		{"flat with noise", func(rate float64) float64 { return 100 + 10*math.Sin(rate*77) }, 0, 0},
		{"a straight line", func(rate float64) float64 { return 10 * rate }, 0, 0},
		{"a hockey stick at 50", func(rate float64) float64 { return 100 + 200*max(0, rate-50) }, 30, 62},
		{"M/M/1 with room for 105", func(rate float64) float64 { return 100 / (1 - rate/105) }, 60, 90},
		{"broken from 20 on", func(rate float64) float64 {
			if rate < 20 {
				return 100 + rate
			}
			return 1000 * rate
		}, 14, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := search.NewSweep(rates)
			drive(t, s, func(rate float64) *measure.Summary {
				return &measure.Summary{Verdict: measure.Stable, E2E: &measure.Distribution{P90: pointer(test.latency(rate))}}
			})
			got := s.Result().Knee
			if test.high == 0 && got != nil {
				t.Errorf("a knee at %v", *got)
			}
			if test.high > 0 && (got == nil || *got < test.low || *got > test.high) {
				t.Errorf("%v, want %v to %v", s.Result(), test.low, test.high)
			}
		})
	}
}

func TestParseRates(t *testing.T) {
	for text, want := range map[string][]float64{
		"1": {1}, "1,2,4.5": {1, 2, 4.5}, "8 , 2": {2, 8}, "5,10,5": {5, 10}, "1..64/7": {1, 2, 4, 8, 16, 32, 64}, "0.5..8/3": {0.5, 2, 8},
	} {
		got, err := search.ParseRates(text)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%q: %v %s", text, err, d)
		}
	}
	for _, text := range []string{"", "1,,2", "a", "1..2", "2..1/4", "1..4/1", "1..4/100000", "-1", "0", "NaN", "1e300", "0..3/3"} {
		if rates, err := search.ParseRates(text); err == nil {
			t.Errorf("%q: %v", text, rates)
		}
	}
}

func FuzzParseRates(f *testing.F) {
	for _, seed := range []string{"1,2,4", "1..64/7", "..", "1../", "1e-300..1e8/200"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rates, err := search.ParseRates(text)
		if err != nil {
			return
		}
		if len(rates) == 0 || len(rates) > 200 {
			t.Fatalf("%d rates", len(rates))
		}
		for i, rate := range rates {
			if !(rate > 0) || math.IsInf(rate, 0) || i > 0 && rate < rates[i-1] {
				t.Fatalf("%v", rates)
			}
		}
	})
}

func TestPresets(t *testing.T) {
	want := map[string]string{
		"mlperf:llama-3.1-8b-server":        "ttft:p99<=2s,tpot:p99<=100ms",
		"mlperf:llama-3.1-8b-interactive":   "ttft:p99<=500ms,tpot:p99<=30ms",
		"mlperf:llama-2-70b-server":         "ttft:p99<=2s,tpot:p99<=200ms",
		"mlperf:llama-2-70b-interactive":    "ttft:p99<=450ms,tpot:p99<=40ms",
		"mlperf:llama-3.1-405b-server":      "ttft:p99<=6s,tpot:p99<=175ms",
		"mlperf:llama-3.1-405b-interactive": "ttft:p99<=4.5s,tpot:p99<=80ms",
	}
	if len(search.Presets()) != len(want) {
		t.Errorf("%d presets", len(search.Presets()))
	}
	for name, slo := range want {
		p, err := search.FindPreset(name)
		if err != nil || p.SLO.String() != slo || p.MinDuration != 10*time.Minute {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := search.FindPreset("mlperf:gpt-2"); err == nil || !strings.Contains(err.Error(), "llama-2-70b-server") {
		t.Error(fmt.Sprint(err))
	}
}
