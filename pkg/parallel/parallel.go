// Package parallel does work on several processors at a time. Any package may import it. The
// goroutines that it starts are gone when its functions return.
package parallel

import (
	"context"
	"sync"
	"sync/atomic"
)

// Do does work for 0 to n-1, begun in this order, in up to so many goroutines, at least one. done hears
// of each that is finished, on the caller's goroutine. The first error ends it, and so does ctx between
// two of them; it returns that error, unless all were done.
func Do(ctx context.Context, workers int, n int64, work func(i int64) error, done func(i int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	finished := make(chan int64)
	for range min(int64(max(workers, 1)), n) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < n && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := work(i); err != nil {
					cancel(err)
					return
				}
				finished <- i
			}
		})
	}
	go func() {
		all.Wait()
		close(finished)
	}()
	left := n
	for i := range finished {
		left--
		done(i)
	}
	if left > 0 {
		return context.Cause(ctx)
	}
	return nil
}
