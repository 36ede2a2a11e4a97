package simulated

import (
	"context"
	"time"
)

// Timer waits. One goroutine at a time uses it.
type Timer interface {
	// Wait returns after d, or with the context's error once that has ended.
	Wait(ctx context.Context, d time.Duration) error
	// Close frees what it holds. Nobody may be waiting.
	Close() error
}

// waitFunc is a Timer that holds nothing.
type waitFunc func(ctx context.Context, d time.Duration) error

func (w waitFunc) Wait(ctx context.Context, d time.Duration) error { return w(ctx, d) }
func (waitFunc) Close() error                                      { return nil }

// wait waits by Go's clock.
func wait(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
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
