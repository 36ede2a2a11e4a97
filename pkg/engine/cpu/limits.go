package cpu

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// limitReadBytes is what is read to measure memory: more than caches hold.
	// quickReadBytes is enough for most and fits beside a small model.
	limitReadBytes = 256 << 20
	quickReadBytes = 64 << 20
	// undisturbedRead and undisturbedPeak are what a machine reaches at least that
	// does nothing else: bytes a second, and FLOP/s of a thread with avx512bf16.
	undisturbedRead = 36e9
	undisturbedPeak = 450e9
)

// MeasureLimits measures what the compute threads reach: multiply-adds, and reading
// memory. It takes the threads' turn for budget; with 0 for some 50 ms and with
// less memory. The result is kept: Limits and the engines' Limits return it.
func (w *Weights) MeasureLimits(ctx context.Context, budget time.Duration) (latency.Limits, error) {
	if err := w.acquire(); err != nil { // so that the pool stays
		return latency.Limits{}, fmt.Errorf("measure limits: %w", err)
	}
	defer w.release()
	if err := w.turn.enter(ctx); err != nil {
		return latency.Limits{}, fmt.Errorf("measure limits: wait for the compute threads: %w", err)
	}
	defer w.turn.leave()
	size := limitReadBytes
	if budget <= 0 {
		size = quickReadBytes
	}
	flops, read, err := w.pool.Limits(w.set, budget, size)
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
