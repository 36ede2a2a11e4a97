package workers

import (
	"context"
	"slices"
	"sync"
)

// dialLimiter bounds how many attempts to connect there are at a time. It is safe for concurrent
// use; its lock is held for no call but its own.
type dialLimiter struct {
	// newestFirst lets who came last go first. It is for those who come once: a worker that
	// starts does not wait behind thousands of records at which nobody answers.
	newestFirst bool

	mu      sync.Mutex
	free    int
	waiting []chan struct{} // closed when the place is theirs
}

// enter waits for a place; it reports whether there is one, which is to be left again.
// Without one, ctx has ended.
func (l *dialLimiter) enter(ctx context.Context) bool {
	l.mu.Lock()
	if l.free > 0 {
		l.free--
		l.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, turn); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return false
	}
	return true // it came at the same moment
}

// leave gives a place to the next.
func (l *dialLimiter) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.free++
		return
	}
	next := 0
	if l.newestFirst {
		next = len(l.waiting) - 1
	}
	close(l.waiting[next])
	l.waiting = slices.Delete(l.waiting, next, next+1)
}
