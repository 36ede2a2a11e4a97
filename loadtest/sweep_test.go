package loadtest_test

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// A sweep around the capacity finds it, and keeps the steps past the breaking point with
// their verdicts.
func TestSweepAroundTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		progress := &begun{}
		c := config(t, "--sweep", "--duration=40s")
		c.KeepRecords = true
		out := run(t, c, fourSlots, progress)
		s := out.Report.Search
		if s == nil || len(s.Steps) != 10 || len(out.Report.Runs) != 10 || len(out.Runs) != 10 {
			t.Fatalf("search %+v, %d runs", s, len(out.Runs))
		}
		if !strings.Contains(progress.what[0], "estimating") || len(progress.what) != 11 {
			t.Errorf("runs: %q", progress.what)
		}
		if last := s.Steps[9]; last.Rate < 50 || last.Rate > 58 || last.Summary.Verdict != measure.Overloaded {
			t.Errorf("1.4 times the capacity of 40: %v requests a second, %s (%s)", last.Rate, last.Summary.Verdict, last.Summary.Reason)
		}
		if s.Breaking == nil || *s.Breaking < 30 || *s.Breaking > 46.5 {
			t.Errorf("breaking point at %v, capacity is 40", s.Breaking)
		}
		for i, f := range out.Report.Runs {
			if f.Rate != s.Steps[i].Rate || i > 0 && f.Rate <= out.Report.Runs[i-1].Rate || out.Runs[i].Offered != f.Rate {
				t.Errorf("run %d is of %v requests a second, step %v, record %v", i, f.Rate, s.Steps[i].Rate, out.Runs[i].Offered)
			}
		}
	})
}

// The changes that a sweep's runs made to requests add up to one warning.
func TestWarningsOfASweepAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := run(t, config(t, "--sweep=5,10", "--arrival=constant", "--duration=10s", "--warmup=0s", "--prompt-tokens=5000", "--context-tokens=64"), fourSlots, &begun{})
		if want := []string{"152 of 152 requests were cut to fit the context of 64 tokens"}; !slices.Equal(out.Report.Warnings, want) {
			t.Errorf("warnings %q, want %q", out.Report.Warnings, want)
		}
	})
}

// An interrupted sweep has its whole steps, and a last one without a verdict.
func TestInterruptedSweep(t *testing.T) {
	for _, c := range []struct {
		name  string
		step  string // during which it is interrupted
		after time.Duration
		steps int
		max   float64 // 0: none
	}{
		{"in the third step", "step 3 of 4", 20 * time.Second, 3, 20},
		{"in the first step", "step 1 of 4", 20 * time.Second, 1, 0},
		{"in the warm-up of the second", "step 2 of 4", time.Second, 2, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			progress := &begun{}
			progress.at = func(s record.Sample) {
				if strings.HasPrefix(progress.what[len(progress.what)-1], c.step) && s.At > c.after {
					cancel()
				}
			}
			out, err := loadtest.Run(ctx, config(t, "--sweep=10,20,80,90", "--duration=60s"), server(t, fourSlots), progress)
			if err != nil {
				t.Fatal(err)
			}
			r := out.Report
			s := r.Search
			if !r.Interrupted || s == nil || len(s.Steps) != c.steps || len(r.Runs) != c.steps {
				t.Fatalf("%s: interrupted %t, %+v, %d runs", c.name, r.Interrupted, s, len(r.Runs))
			}
			last := s.Steps[c.steps-1]
			if !last.Interrupted || !last.Unknown || last.Passed || last.Summary.Verdict == measure.Stable || !strings.HasPrefix(last.Why, "interrupted after ") || s.Breaking != nil {
				t.Errorf("%s: the last step is %+v, breaking at %v", c.name, last, s.Breaking)
			}
			if (s.MaxRate == nil) != (c.max == 0) || s.MaxRate != nil && *s.MaxRate != c.max {
				t.Errorf("%s: most %v, want %v", c.name, s.MaxRate, c.max)
			}
		})
	}
}

// A step that cannot run costs nothing of what was measured before it.
func TestAStepThatCannotRun(t *testing.T) {
	const why = "nothing left to send"
	for _, flags := range [][]string{{"--sweep=10,20,30"}, {"--find-max", "--rate=10"}} {
		synctest.Test(t, func(t *testing.T) {
			c := config(t, append(flags, "--arrival=constant", "--duration=10s")...)
			runs := 0
			c.Drive = func(ctx context.Context, o drive.Options) (*record.Run, error) {
				if runs++; runs > 2 {
					return nil, errors.New(why)
				}
				return drive.Run(ctx, o)
			}
			r := run(t, c, fourSlots, &begun{}).Report
			if len(r.Runs) != 2 || r.Interrupted || r.Search == nil || r.Search.MaxRate == nil || *r.Search.MaxRate != 20 {
				t.Fatalf("%q: %d runs, %+v", flags, len(r.Runs), r.Search)
			}
			if last := r.Search.Steps[len(r.Search.Steps)-1]; !last.Unknown || last.Why != why {
				t.Errorf("%q: the last step is %+v", flags, last)
			}
			if err := r.WriteTable(io.Discard, 80); err != nil {
				t.Errorf("%q: %v", flags, err)
			}
		})
	}
}

// Records that would not fit in memory are an error before the first step, not at theirs.
func TestASweepThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		progress := &begun{}
		_, err := loadtest.Run(t.Context(), config(t, "--sweep=10,1000000"), server(t, fourSlots), progress)
		if err == nil || !strings.Contains(err.Error(), "lower the rate") || len(progress.what) > 0 {
			t.Errorf("%v after %q", err, progress.what)
		}
	})
}

// The README's sweep on a slow server says beforehand how long it takes, and leaves out
// the rates at which the SLO's percentiles would take longest. No step lasts 893 s.
func TestSweepOfASlowServer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		progress := &begun{}
		began := time.Now()
		out := run(t, config(t, "--sweep", "--slo=ttft:p99<200ms,tpot:p99<10ms", "--output-tokens=64"), fourSlots, progress)
		took := time.Since(began)
		if len(progress.plans) != 1 {
			t.Fatalf("plans: %v", progress.plans)
		}
		plan := progress.plans[0]
		if len(plan.Steps) != 5 || len(out.Report.Search.Steps) != 5 || !plan.Coarse {
			t.Errorf("plan %v, %d steps", plan, len(out.Report.Search.Steps))
		}
		for i, step := range plan.Steps {
			if step.Length > 5*time.Minute+3*time.Second {
				t.Errorf("%v/s takes %v", step.Rate, step.Length)
			}
			if f := out.Report.Runs[i]; f.Rate != step.Rate || math.Abs(f.WindowS+f.WarmupS-step.Length.Seconds()) > 1e-3 {
				t.Errorf("planned %+v, run at %v for %v s", step, f.Rate, f.WindowS+f.WarmupS)
			}
		}
		if want := "each rate was sent for 61.8 s to 247 s"; !strings.HasPrefix(out.Report.Workload[len(out.Report.Workload)-1], want) {
			t.Errorf("workload %q, want %q", out.Report.Workload, want)
		}
		// The estimate and the waits for last answers add to that.
		if took < plan.Length() || took > plan.Length()+5*time.Minute {
			t.Errorf("planned %v, took %v", plan.Length(), took)
		}
		if !strings.Contains(plan.String(), "fewer rates than usual, since each takes so long\neach takes 33s with its warm-up, or longer until it has the 368 requests that ttft:p99 needs: up to ") {
			t.Errorf("it says %q", plan)
		}
	})
}

func TestPlanInWords(t *testing.T) {
	const s = time.Second
	for want, plan := range map[string]loadtest.Plan{
		"no rates":                          {},
		"one rate, 4 requests/s, about 33s": {Shortest: 33 * s, Steps: []loadtest.PlannedStep{{Rate: 4, Length: 33 * s}}},
		"4 runs of 1m40s at 7.143 requests/s, about 6m40s":    {Steps: slices.Repeat([]loadtest.PlannedStep{{Rate: 50. / 7, Length: 100 * s}}, 4)},
		"4 runs at 2 rates from 2 to 8 requests/s, about 40s": {Steps: slices.Repeat([]loadtest.PlannedStep{{Rate: 2, Length: 10 * s}, {Rate: 8, Length: 10 * s}}, 2)},
		"2 rates from 4 to 8 requests/s, about 1m6s": {
			Shortest: 33 * s, Steps: []loadtest.PlannedStep{{Rate: 8, Length: 33 * s}, {Rate: 4, Length: 33 * s}},
		},
		"2 rates from 2 to 8 requests/s, about 30s\neach takes 8s with its warm-up, or longer until it has the 20 requests that a verdict needs: up to 22s, at 2/s\nhigher rates shorten it": {
			Requests: 20, For: "a verdict", Shortest: 8 * s, Steps: []loadtest.PlannedStep{{Rate: 2, Length: 22 * s}, {Rate: 8, Length: 8 * s}},
		},
		"2 rates from 0.5 to 8 requests/s, about 5m59s\neach takes 33s with its warm-up, or longer until it has the 368 requests that ttft:p99 needs: up to 5m3s, at 0.5/s\n" +
			"to shorten it, pass higher rates, or a lower percentile in --slo: p90 needs 36\n" +
			"at 0.5/s even 5m3s is too short for that: percentiles with too few samples are left out": {
			Requests: 368, For: "ttft:p99", Shortest: 33 * s, Steps: []loadtest.PlannedStep{{Rate: 0.5, Length: 303 * s, Short: true}, {Rate: 8, Length: 56 * s}},
		},
		"searching from 4 requests/s on: at most 20 steps that send requests for 30m0s, usually less than half of that, if the highest rate is between 1 and 16/s and no step is inconclusive; last answers may take 30s more at each (--drain-timeout)\n" +
			"each takes 33s with its warm-up, or longer until it has the 368 requests that ttft:p99 needs": {
			Requests: 368, For: "ttft:p99", Shortest: 33 * s, Start: 4, Least: 1, Highest: 16, Most: 20, Bound: 30 * time.Minute, Drain: 30 * s,
		},
	} {
		if got := plan.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
