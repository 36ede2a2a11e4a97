// Package finetimer waits for points in time more precisely than Go's timers.
//
// Anything may import it. A Timer owns at most a file descriptor and starts no goroutine.
//
// An idle Go program waits in epoll_wait, whose timeout has millisecond resolution, so it
// wakes up to a millisecond late; a busy one checks its timers whenever it switches
// goroutines and is on time. New therefore arms two clocks: Go's own, and on Linux a
// timerfd, which ends epoll_wait with nanosecond resolution. A dedicated thread in
// clock_nanosleep is worse: after waking it must take a processor from running
// goroutines, and while asleep it holds one.
package finetimer

import (
	"context"
	"time"
)

// Timer lets one goroutine wait for points in time.
type Timer interface {
	// Wait returns at that time or soon after, or earlier if Wake was called since the
	// last Wait. Only one goroutine may wait.
	Wait(until time.Time)
	// Wake ends the current Wait, or the next. Any goroutine may call it.
	Wake()
	// Close releases the timer's resources. No Wait may be running or follow.
	Close() error
}

// New returns the most precise timer that does not spin. Hundreds may wait at once.
func New() Timer { return newTimer(false) }

// NewSpinning returns the most precise timer: after a wait of 5 ms or more it spins for
// the last 100 µs, while a sleeping processor wakes up. Use it only for the few waits
// that everything depends on.
func NewSpinning() Timer { return newTimer(true) }

func newTimer(spins bool) Timer {
	if t := newPrecise(spins); t != nil {
		return t
	}
	return Portable()
}

// Wait waits with t for d, or until ctx ends, and then returns ctx's error. The caller
// must be the only one to wait with t or wake it.
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
	// The Wake may have come too late for this wait. It must not end the next.
	<-woken
	t.Wait(time.Time{})
	return ctx.Err()
}

// Portable returns a timer on Go's clock alone, which is virtual in a synctest bubble.
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
