package packedweights

import (
	"context"
	"sort"
	"sync"
	"sync/atomic"
)

// stream sees parts of memory as one sequence of bytes, cut into chunks.
type stream struct {
	parts [][]byte
	ends  []int64 // where each part ends in the sequence
	bytes int64
}

func newStream(parts [][]byte) stream {
	s := stream{parts: parts, ends: make([]int64, len(parts))}
	for i, p := range parts {
		s.bytes += int64(len(p))
		s.ends[i] = s.bytes
	}
	return s
}

// bounds are the first byte of chunk i and the one after its last.
func (s stream) bounds(i int64) (first, end int64) {
	return i * chunkBytes, min((i+1)*chunkBytes, s.bytes)
}

// each hands the pieces of chunk i, in order, to do, with their place in the
// sequence.
func (s stream) each(i int64, do func(piece []byte, at int64) error) error {
	at, end := s.bounds(i)
	for k := sort.Search(len(s.ends), func(k int) bool { return s.ends[k] > at }); at < end; k++ {
		part := s.parts[k]
		start := s.ends[k] - int64(len(part))
		piece := part[at-start : min(int64(len(part)), end-start)]
		if len(piece) == 0 {
			continue
		}
		if err := do(piece, at); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}

// inParallel does work for 0 to n-1, in about this order, in up to `workers`
// goroutines, which are gone when it returns. done hears of each finished one on the
// caller's goroutine. The first error ends it, and ctx between two of them.
func inParallel(ctx context.Context, workers int, n int64, work func(i int64) error, done func(i int64)) error {
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
