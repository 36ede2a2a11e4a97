package cpu

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// Reading is memory that the compute threads of weights read in short windows, to
// compare a computation with reading in the same moments. Its methods may be called
// from several goroutines.
type Reading struct {
	weights *Weights

	mu     sync.Mutex // taken within the threads' turn
	memory *kernels.Reader
	closed bool
}

// NewReading takes 512 MiB, which is more than caches hold; quick takes 128 MiB.
// The weights cannot be closed before it is.
func (w *Weights) NewReading(quick bool) (*Reading, error) {
	if err := w.acquire(); err != nil { // so that the pool stays
		return nil, fmt.Errorf("measure reading: %w", err)
	}
	size := limitReadBytes
	if quick {
		size = quickReadBytes
	}
	memory, err := w.pool.NewReader(size)
	if err != nil {
		w.release()
		return nil, fmt.Errorf("measure reading: %w", err)
	}
	return &Reading{weights: w, memory: memory}, nil
}

// Measure reads for budget, 256 MiB (quick: 64) at least, with the loop that was
// fastest when MeasureLimits ran last (before it has: with any), and returns the bytes
// per second of the whole window. It takes the threads' turn meanwhile.
func (r *Reading) Measure(ctx context.Context, budget time.Duration) (bytesPerSecond float64, err error) {
	if err := r.weights.turn.Acquire(ctx, 1); err != nil {
		return 0, fmt.Errorf("measure reading: wait for the compute threads: %w", err)
	}
	defer r.weights.turn.Release(1)
	r.weights.mu.Lock()
	variant := r.weights.reading
	r.weights.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, fmt.Errorf("measure reading: %w", errClosed)
	}
	return r.memory.Read(variant, budget), nil
}

// Close frees the memory, once nothing reads it. Closing twice does nothing.
func (r *Reading) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.memory.Free()
	r.weights.release()
}
