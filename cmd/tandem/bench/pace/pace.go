// Package pace waits for moments more precisely than Go's timers do alone.
//
// The packages of cmd/tandem/bench import it. A Timer owns at most a file
// descriptor and starts no goroutine.
//
// An idle Go program waits in epoll_wait, whose timeout is whole milliseconds: it
// comes up to one late. A busy one looks at its timers each time that it changes
// from one goroutine to another, and is on time. So New arms two clocks: Go's own,
// and on Linux a timerfd, which ends an epoll_wait to the nanosecond; after a long
// wait it spins for the last 100 µs, in which the processor wakes up. A thread of
// its own in clock_nanosleep does worse: when it wakes it has to win a processor
// from the goroutines that run, and while it sleeps it keeps one.
package pace

import "time"

// Timer lets one goroutine wait for moments.
type Timer interface {
	// Wait returns at that moment or soon after; earlier if Wake was called since the
	// last Wait. Only one goroutine may wait.
	Wait(until time.Time)
	// Wake ends the Wait that runs, or the next. Any goroutine may call it.
	Wake()
	// Close frees what the timer holds. No Wait may be running, and none may follow.
	Close() error
}

// New is the most precise timer of this system.
func New() Timer {
	if t := newPrecise(); t != nil {
		return t
	}
	return Portable()
}

// Portable is a timer on Go's clock alone, which is a virtual one in a bubble of
// testing/synctest.
func Portable() Timer {
	t := &portable{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

type portable struct {
	wake  chan struct{}
	timer *time.Timer
}

func (p *portable) Wait(until time.Time) {
	left := time.Until(until)
	if left <= 0 {
		select {
		case <-p.wake:
		default:
		}
		return
	}
	p.timer.Reset(left)
	select {
	case <-p.wake:
		p.timer.Stop()
	case <-p.timer.C:
	}
}

func (p *portable) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *portable) Close() error {
	p.timer.Stop()
	return nil
}
