package tracing_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/tracing"
)

// The table is any book's.
func TestStudentT(t *testing.T) {
	for v, want := range map[float64]float64{5: 2.571, 9: 2.262, 19: 2.093, 29: 2.045, 1e6: 1.960} {
		if got := tracing.StudentT(v); math.Abs(got-want) > 0.004 {
			t.Errorf("%v degrees: %v, want %v", v, got, want)
		}
	}
}

func TestInterval(t *testing.T) {
	got := tracing.IntervalOf([]float64{1, 2, 3, 4, 5, 9})
	// Mean 4, standard deviation √8, so 2.571·√(8/6) on either side.
	if got.Mean != 4 || got.Median != 3.5 || math.Abs(got.Low-(4-2.9687)) > 0.005 || math.Abs(got.High-(4+2.9687)) > 0.005 {
		t.Errorf("got %+v", got)
	}
}

// mute is a server that never answers.
type mute struct{ client.Client }

func (mute) Do(ctx context.Context, _ *workload.Request, _ client.Clock, r *record.Record) workload.Answer {
	<-ctx.Done()
	r.Outcome = record.TimedOut
	return workload.Answer{}
}

// A request that hangs ends the block, after a time that its steps could not take.
func TestARequestHasADeadline(t *testing.T) {
	for _, c := range []struct {
		options tracing.Options
		want    time.Duration
	}{
		{tracing.Options{PromptTokens: 60, OutputTokens: 40, StepMs: 1}, 61 * time.Second},
		{tracing.Options{PromptTokens: 1 << 20, OutputTokens: 1 << 20, StepMs: 1000}, 1000*time.Hour + time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := tracing.Send(t.Context(), c.options, mute{})
			if took := time.Since(began); took != c.want || err == nil || !strings.HasPrefix(err.Error(), "request 1: it had not ended after ") {
				t.Errorf("after %s, want %s: %v", took, c.want, err)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	good := tracing.Options{Share: 0.01, Pairs: 20, Requests: 100, Concurrency: 8, PromptTokens: 10, OutputTokens: 10, StepMs: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for flag, change := range map[string]func(*tracing.Options){
		"--sample":      func(o *tracing.Options) { o.Share = math.NaN() },
		"--pairs":       func(o *tracing.Options) { o.Pairs = 5 },
		"--requests":    func(o *tracing.Options) { o.Requests = 0 },
		"--concurrency": func(o *tracing.Options) { o.Concurrency = 0 },
		"--prompt":      func(o *tracing.Options) { o.PromptTokens = 0 },
		"--output":      func(o *tracing.Options) { o.OutputTokens = -1 },
		"--step-ms":     func(o *tracing.Options) { o.StepMs = 0 },
	} {
		o := good
		change(&o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag+": ") {
			t.Errorf("want an error of %s, got %v", flag, err)
		}
	}
}
