package kvtransfer

import (
	"sync"
	"time"
)

// alarm ticks a core when it wants that. The core and at are guarded by mu.
type alarm struct {
	mu   *sync.Mutex
	wake chan struct{} // tells run to look again
	at   time.Time     // when run wakes by itself; zero if it does not
}

func newAlarm(mu *sync.Mutex) alarm { return alarm{mu: mu, wake: make(chan struct{}, 1)} }

// clocked is a core.
type clocked interface {
	Next() (at time.Time, ok bool)
}

// set has run look again if the core's next deadline is before the one that it waits for.
// mu is held.
func (a *alarm) set(core clocked) {
	if next, ok := core.Next(); ok && (a.at.IsZero() || next.Before(a.at)) {
		poke(a.wake)
	}
}

// run ticks until done, or until over, which it asks whenever it has looked.
func (a *alarm) run(done <-chan struct{}, core clocked, tick func(), over func() bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !over() {
		select {
		case <-done:
			return
		case <-a.wake:
		case <-timer.C:
			tick()
		}
		if next, ok := a.arm(core); ok {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

func (a *alarm) arm(core clocked) (next time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if next, ok = core.Next(); ok {
		a.at = next
	} else {
		a.at = time.Time{}
	}
	return next, ok
}

// poke tells whoever waits on wake, which holds one, to look again.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
