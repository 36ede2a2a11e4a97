package cpu

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// limitReadBytes is what is read to measure memory: more than most caches hold.
	limitReadBytes = 256 << 20
	// undisturbedRead and undisturbedPeak are what a machine reaches at least that
	// does nothing else: bytes a second, and FLOP/s of a thread with avx512bf16.
	undisturbedRead = 36e9
	undisturbedPeak = 450e9
)

// MeasureLimits measures what the compute threads reach: multiply-adds, and reading
// memory. It takes the threads' turn and some 100 ms, or budget if that is longer.
// The result is kept: Limits and the engines' Limits return it.
func (w *Weights) MeasureLimits(ctx context.Context, budget time.Duration) (latency.Limits, error) {
	if err := w.acquire(); err != nil { // so that the pool stays
		return latency.Limits{}, fmt.Errorf("measure limits: %w", err)
	}
	defer w.release()
	if err := w.turn.enter(ctx); err != nil {
		return latency.Limits{}, fmt.Errorf("measure limits: wait for the compute threads: %w", err)
	}
	defer w.turn.leave()
	flops, read, err := w.pool.Limits(w.set, budget, limitReadBytes)
	if err != nil {
		return latency.Limits{}, fmt.Errorf("measure limits: %w", err)
	}
	limits := latency.Limits{FLOPsPerSecond: flops, ReadBytesPerSecond: read, Valid: read >= undisturbedRead}
	if w.set.Name() == "avx512bf16" && flops < undisturbedPeak*float64(w.pool.Threads()) {
		limits.Valid = false
	}
	w.SetLimits(limits)
	return limits, nil
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
