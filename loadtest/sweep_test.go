package loadtest_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// A sweep around the capacity finds it, keeps the steps past the breaking point, and
// calls them what they are.
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

// What the runs of a sweep had to change is one warning, added up.
func TestWarningsOfASweepAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := run(t, config(t, "--sweep=5,10", "--arrival=constant", "--duration=10s", "--warmup=0s", "--prompt-tokens=5000", "--context-tokens=64"), fourSlots, &begun{})
		if want := []string{"152 of 152 requests were cut to fit the context of 64 tokens"}; !slices.Equal(out.Report.Warnings, want) {
			t.Errorf("warnings %q, want %q", out.Report.Warnings, want)
		}
	})
}

// An interrupted sweep has the rates that were whole, and what was seen of the last,
// which tells nothing.
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
			if !last.Interrupted || !last.Unknown || last.Passed || !strings.HasPrefix(last.Why, "interrupted after ") || s.Breaking != nil {
				t.Errorf("%s: the last step is %+v, breaking at %v", c.name, last, s.Breaking)
			}
			if (s.MaxRate == nil) != (c.max == 0) || s.MaxRate != nil && *s.MaxRate != c.max {
				t.Errorf("%s: most %v, want %v", c.name, s.MaxRate, c.max)
			}
		})
	}
}

// The sweep of the README on a slow server: it says before it begins how long it takes,
// leaves out rates at which the percentiles of the SLO would take the longest, and no
// step is as long as 893 s.
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
		// The estimate and the waits for the last answers come on top.
		if took < plan.Length() || took > plan.Length()+5*time.Minute {
			t.Errorf("planned %v, took %v", plan.Length(), took)
		}
		if !strings.Contains(plan.String(), "fewer rates than usual, because the verdict of each needs 445 requests") {
			t.Errorf("it says %q", plan)
		}
	})
}

func TestPlanInWords(t *testing.T) {
	const s = time.Second
	for want, plan := range map[string]loadtest.Plan{
		"no rates":                                   {},
		"one rate, 4 requests/s, about 33s":          {Steps: []loadtest.PlannedStep{{Rate: 4, Length: 33 * s}}},
		"2 rates from 4 to 8 requests/s, about 1m6s": {Steps: []loadtest.PlannedStep{{Rate: 8, Length: 33 * s}, {Rate: 4, Length: 33 * s}}},
		"2 rates from 0.5 to 8 requests/s, about 5m59s; the longest step takes 5m3s, at 0.5/s, for the 445 requests that its verdict needs; " +
			"at 0.5/s that is too short: percentiles with too few samples are left out": {
			Requests: 445, Steps: []loadtest.PlannedStep{{Rate: 0.5, Length: 303 * s, Short: true}, {Rate: 8, Length: 56 * s}},
		},
	} {
		if got := plan.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
