package engine

import "context"

// Holding is an Engine that computes in turns with others.
type Holding interface {
	// Hold waits for a turn and keeps it until release, which the caller calls once: steps with
	// the returned context, of all engines that take turns with this one, do not wait for a turn.
	// One goroutine at a time uses the context for steps. An error is ctx's.
	Hold(ctx context.Context) (held context.Context, release func(), err error)
}
