// Package finetimer waits for moments more precisely than Go's timers do alone.
//
// Anything may import it. A Timer owns at most a file
// descriptor and starts no goroutine.
//
// An idle Go program waits in epoll_wait, whose timeout is whole milliseconds: it
// comes up to one late. A busy one looks at its timers each time that it changes
// from one goroutine to another, and is on time. So New arms two clocks: Go's own,
// and on Linux a timerfd, which ends an epoll_wait to the nanosecond. A thread of
// its own in clock_nanosleep does worse: when it wakes it has to win a processor
// from the goroutines that run, and while it sleeps it keeps one.
package finetimer

import (
	"context"
	"time"
)

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

// New is the most precise timer of this system that computes nothing while it waits:
// hundreds may wait at once.
func New() Timer { return newTimer(false) }

// NewSpinning is the most precise timer of this system: after a wait of 5 ms or more
// it spins for the last 100 µs, in which a processor that slept wakes up. It is for
// the few that everything waits for.
func NewSpinning() Timer { return newTimer(true) }

func newTimer(spins bool) Timer {
	if t := newPrecise(spins); t != nil {
		return t
	}
	return Portable()
}

// Wait waits with t for d, or until ctx ends, whose error it then returns. The caller
// is the one goroutine that may wait with t, and nobody else may wake it.
func Wait(ctx context.Context, t Timer, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	until := time.Now().Add(d)
	woken := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		defer close(woken)
		t.Wake()
	})
	t.Wait(until)
	if release() {
		return nil
	}
	// The Wake may have come too late for this wait: it must not end the next.
	<-woken
	t.Wait(time.Time{})
	return ctx.Err()
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
