package simulated

import (
	"context"
	"time"

	"github.com/tandem-serving/tandem/pkg/pace"
)

// sleeper waits. One goroutine at a time uses it.
type sleeper interface {
	// wait returns after d, or with the context's error once that has ended.
	wait(ctx context.Context, d time.Duration) error
	// close frees what it holds. Nobody may be waiting.
	close() error
}

// paced waits by a timer, which nobody else wakes.
type paced struct{ pace.Timer }

func (p paced) wait(ctx context.Context, d time.Duration) error { return pace.Wait(ctx, p.Timer, d) }
func (p paced) close() error                                    { return p.Close() }

// given waits by the caller's function.
type given func(ctx context.Context, d time.Duration) error

func (g given) wait(ctx context.Context, d time.Duration) error { return g(ctx, d) }
func (given) close() error                                      { return nil }
