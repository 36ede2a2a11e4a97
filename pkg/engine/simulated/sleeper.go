package simulated

import (
	"context"
	"time"
)

// sleeper waits. One goroutine at a time uses it.
type sleeper interface {
	// wait returns after d, or with the context's error once that has ended.
	wait(ctx context.Context, d time.Duration) error
	// close frees what it holds. Nobody may be waiting.
	close() error
}

// timers waits by Go's timers, which are up to a millisecond late in a process
// that is otherwise idle, and which testing/synctest knows.
type timers struct{}

func (timers) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (timers) close() error { return nil }

// given waits by the caller's function.
type given func(ctx context.Context, d time.Duration) error

func (g given) wait(ctx context.Context, d time.Duration) error { return g(ctx, d) }
func (given) close() error                                      { return nil }
