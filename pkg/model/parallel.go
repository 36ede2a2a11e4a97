package model

import (
	"context"
	"runtime"
	"sync"
)

// inParallel does jobs on all processors. Each worker gets a function of its own
// from newWorker, which may hold scratch memory. done hears of each finished job
// on the caller's goroutine. The first error ends everything, as does ctx; all
// workers are gone when it returns.
func inParallel[J any](ctx context.Context, jobs []J, newWorker func() func(J) error, done func(J)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan J, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	finished := make(chan J)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			work := newWorker()
			for j := range queue {
				if ctx.Err() != nil {
					return
				}
				if err := work(j); err != nil {
					cancel(err)
					return
				}
				finished <- j
			}
		})
	}
	go func() {
		workers.Wait()
		close(finished)
	}()
	left := len(jobs)
	for j := range finished {
		left--
		done(j)
	}
	if left > 0 {
		return context.Cause(ctx)
	}
	return nil
}
