package cpu

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// limitReadBytes is what is read to measure memory: more than caches hold.
	// quickReadBytes is enough for most and fits beside a small model.
	limitReadBytes = 256 << 20
	quickReadBytes = 64 << 20
	// undisturbedShare of the time a thread has a processor at least, on a machine that
	// does nothing else.
	undisturbedShare = 0.9
	// barrierRounds is how many barriers are timed together: a millisecond's worth, and
	// not minutes where threads wait for a processor at each.
	barrierRounds = 10_000
)

// MeasureLimits measures what the compute threads reach: multiply-adds, and reading
// memory. It takes the threads' turn for budget; with 0 for some 50 ms and with
// less memory. The result is kept: Limits and the engines' Limits return it. It is
// not valid if others had the processors for some of the time.
func (w *Weights) MeasureLimits(ctx context.Context, budget time.Duration) (latency.Limits, error) {
	if err := w.acquire(); err != nil { // so that the pool stays
		return latency.Limits{}, fmt.Errorf("measure limits: %w", err)
	}
	defer w.release()
	if err := w.turn.Acquire(ctx, 1); err != nil {
		return latency.Limits{}, fmt.Errorf("measure limits: wait for the compute threads: %w", err)
	}
	defer w.turn.Release(1)
	size := limitReadBytes
	if budget <= 0 {
		size = quickReadBytes
	}
	reached, err := w.pool.Limits(w.set, budget, size)
	if err != nil {
		return latency.Limits{}, fmt.Errorf("measure limits: %w", err)
	}
	limits := latency.Limits{
		FLOPsPerSecond: reached.FLOPsPerSecond, ReadBytesPerSecond: reached.ReadBytesPerSecond, Valid: reached.CPUShare >= undisturbedShare,
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits, w.reading = limits, reached.ReadVariant
	return limits, nil
}

// MeasureBarrier measures how long the compute threads take to wait for each other,
// in nanoseconds: the best of the means, each over 10,000 barriers, that budget has
// room for, one at least. A single thread has nobody to wait for. It takes the threads'
// turn for budget, or for a mean, which takes a second or so where others want the
// processors too.
func (w *Weights) MeasureBarrier(ctx context.Context, budget time.Duration) (nanoseconds float64, err error) {
	if err := w.acquire(); err != nil { // so that the pool stays
		return 0, fmt.Errorf("measure the barrier: %w", err)
	}
	defer w.release()
	if err := w.turn.Acquire(ctx, 1); err != nil {
		return 0, fmt.Errorf("measure the barrier: wait for the compute threads: %w", err)
	}
	defer w.turn.Release(1)
	best := math.Inf(1)
	for began := time.Now(); ; {
		best = min(best, w.pool.Barrier(barrierRounds))
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("measure the barrier: %w", err)
		}
		if time.Since(began) >= budget {
			return best, nil
		}
	}
}

// SetLimits keeps limits that were measured before.
func (w *Weights) SetLimits(limits latency.Limits) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits = limits
}

// Limits are those that were measured or set; zero: none were.
func (w *Weights) Limits() latency.Limits {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limits
}

// Limits implements engine.Limited.
func (e *cpuEngine) Limits() latency.Limits { return e.weights.Limits() }
