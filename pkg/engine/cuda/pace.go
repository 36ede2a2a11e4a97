package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// LeastCopyRate is the least that Config.CopyRate may be, beside 0, in bytes a second:
// with less a chunk of a transfer would wait longer than its peer's patience allows.
const LeastCopyRate = 16 << 20

// pace bounds what is copied between the host and a device while a step of the device
// runs, over all its engines. Between steps nothing is disturbed, so nothing waits. It is
// safe for concurrent use.
type pace struct {
	perSecond int64        // bytes; 0: without a bound
	steps     atomic.Int32 // that run

	mu   sync.Mutex
	next time.Time // when all that was let through has had its time
}

func newPace(perSecond int64) (*pace, error) {
	if perSecond != 0 && perSecond < LeastCopyRate {
		return nil, fmt.Errorf("a copy rate of %d bytes per second is too low: use 0 for no limit, or at least %d", perSecond, LeastCopyRate)
	}
	return &pace{perSecond: perSecond}, nil
}

// stepBegins and stepEnds stand around all that the device has of a step.
func (p *pace) stepBegins() { p.steps.Add(1) }
func (p *pace) stepEnds()   { p.steps.Add(-1) }

var errPages = errors.New("the pages are being closed")

// wait is called before bytes are copied, and returns when they may be, or with an error
// when stop is closed. Callers go in the order in which they came. Each holds a copier, so one
// waits at most for what the other copiers of all engines of the weights copy.
func (p *pace) wait(bytes int, stop <-chan struct{}) error {
	if p.perSecond == 0 || p.steps.Load() == 0 {
		return nil
	}
	now := time.Now()
	p.mu.Lock()
	if p.next.Before(now) {
		p.next = now
	}
	due := p.next
	p.next = due.Add(time.Duration(float64(bytes) / float64(p.perSecond) * float64(time.Second)))
	p.mu.Unlock()
	if !due.After(now) {
		return nil
	}
	timer := time.NewTimer(due.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-stop:
		return errPages
	}
}
