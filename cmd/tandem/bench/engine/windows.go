package engine

import (
	"context"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

// window is some steps of decode between two windows of reading. Who else uses memory
// changes from moment to moment: what is compared are moments next to each other.
type window struct {
	steps         int
	took          time.Duration
	before, after float64 // bytes per second read
}

// ofRead is what each window reads, at stepBytes a step, as a share of what reading
// reached around it.
func ofRead(windows []window, stepBytes float64) []float64 {
	shares := make([]float64, len(windows))
	for i, w := range windows {
		shares[i] = stepBytes * float64(w.steps) / w.took.Seconds() / ((w.before + w.after) / 2)
	}
	return shares
}

// decode is one round of it, into the round: its windows in turns with reading.
func (r *run) decode(ctx context.Context, reading *cpu.Reading, now *round) error {
	r.next.Begin(r.plan.ContextTokens)
	now.steps = make([]time.Duration, 0, r.plan.DecodeSteps)
	before, err := reading.Measure(ctx, r.plan.window())
	if err != nil {
		return err
	}
	for len(now.steps) < r.plan.DecodeSteps {
		if err := r.warm(ctx, now.steps); err != nil {
			return err
		}
		w, err := r.decodeWindow(ctx, now)
		if err != nil {
			return err
		}
		w.before = before
		if w.after, err = reading.Measure(ctx, r.plan.window()); err != nil {
			return err
		}
		now.windows = append(now.windows, w)
		before = w.after
	}
	return nil
}

// warm computes the next step, which then is computed again: reading has left nothing of
// the model in the caches. Where a step takes longer than a window there is no need to.
func (r *run) warm(ctx context.Context, done []time.Duration) error {
	if n := len(done); r.plan.window() == 0 || n > 0 && done[n-1] >= r.plan.window() {
		return nil
	}
	_, err := r.next.Compute(ctx)
	return err
}

// decodeWindow decodes for a window, one step at least, and counts what it allocates.
func (r *run) decodeWindow(ctx context.Context, now *round) (w window, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for w.steps == 0 || w.took < r.plan.window() && len(now.steps) < r.plan.DecodeSteps {
		began := time.Now()
		if err := r.next.Step(ctx); err != nil {
			return w, err
		}
		took := time.Since(began)
		now.steps = append(now.steps, took)
		w.steps++
		w.took += took
	}
	runtime.ReadMemStats(&after)
	now.allocs += after.Mallocs - before.Mallocs
	now.allocd += after.TotalAlloc - before.TotalAlloc
	return w, nil
}
