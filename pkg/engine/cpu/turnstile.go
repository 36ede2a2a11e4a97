package cpu

import (
	"context"
	"sync"
)

// turnstile lets one in at a time, in the order of arrival. The zero value is
// open.
type turnstile struct {
	mu      sync.Mutex
	taken   bool
	waiting []chan struct{} // closed to hand the turn over
}

// enter waits for the turn or for the context's end. Only after nil must leave
// be called.
func (t *turnstile) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	for i, w := range t.waiting {
		if w == turn {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			t.mu.Unlock()
			return ctx.Err()
		}
	}
	t.mu.Unlock()
	t.leave() // the turn came in the same moment: pass it on
	return ctx.Err()
}

// leave hands the turn to whoever has waited longest.
func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.taken = false
		return
	}
	close(t.waiting[0])
	t.waiting = t.waiting[1:]
}
