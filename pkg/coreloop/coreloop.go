// Package coreloop drives a core, which is a state machine without goroutines, clocks, locks
// or I/O: events in, actions out, and a tick when the core wants one.
//
// Any driver of a core may import it; cores must not. The goroutine that unlocks a Loop makes the
// pending calls. Ticks come from Run, which the Loop's owner calls, or from a timer (Tick).
package coreloop

import (
	"sync"
	"time"
)

// Core is a state machine with events E and actions A.
type Core[E, A any] interface {
	// Handle takes in an event and returns what to do, in order. now never runs backwards.
	Handle(now time.Time, event E) []A
	// Next is when a tick is due if nothing else happens; ok is false if none is.
	Next() (at time.Time, ok bool)
}

// Loop gives a core its events, one at a time, and has its owner carry out the actions. Its
// lock guards the core and any state that the owner keeps beside it. Set the exported fields
// before the first event.
type Loop[C Core[E, A], E, A any] struct {
	// Core requires the lock.
	Core C
	// Now gives each event its time and must not run backwards. New sets time.Now.
	Now func() time.Time
	// Recorder, if set, is told of each event in order, under the lock.
	Recorder Recorder
	// Tick, if set, has to give the core a tick. It is called whenever the core wants one, from a goroutine
	// of its own, until StopTicks. It is for owners without a goroutine that could call Run.
	Tick func()

	apply func(now time.Time, actions []A)
	mu    sync.Mutex

	calls   []func()   // pending calls of After, in order
	calling bool       // a goroutine is making them
	quiet   *sync.Cond // on mu: calling is false

	wake  chan struct{} // wakes Run to ask Next again; capacity 1
	until time.Time     // when timer fires; zero if it does not
	timer *time.Timer   // of Tick, or of the goroutine that calls Run
}

// Recorder is told what a core takes in and what it does.
type Recorder interface {
	// Event is called before an event is taken in, and returns what the core takes instead,
	// of the same type.
	Event(now time.Time, event any) any
	// Actions is called before the actions of that event, a slice, are carried out. It must
	// not keep them.
	Actions(actions any)
}

// New returns a loop for a core. apply carries out the actions of each event, under the
// lock, and must not block. It may call After, and also Step if the core's actions stay
// valid across that.
func New[C Core[E, A], E, A any](core C, apply func(now time.Time, actions []A)) *Loop[C, E, A] {
	l := &Loop[C, E, A]{Core: core, Now: time.Now, apply: apply, wake: make(chan struct{}, 1)}
	l.quiet = sync.NewCond(&l.mu)
	return l
}

// Handle gives the core an event and carries out the actions. It takes the lock.
func (l *Loop[C, E, A]) Handle(event E) { Handle(l, C.Handle, event) }

// Step is Handle for a caller that has the lock. It returns the actions, which have been
// carried out and are valid until the next event.
func (l *Loop[C, E, A]) Step(event E) []A { return Step(l, C.Handle, event) }

// Handle is Loop.Handle through a method of the core that takes one type of event, which
// saves the allocation of an interface value.
func Handle[C Core[E, A], E, A, V any](l *Loop[C, E, A], handle func(C, time.Time, V) []A, event V) {
	l.Lock()
	defer l.Unlock()
	Step(l, handle, event)
}

// Step is Loop.Step through a method of the core that takes one type of event.
func Step[C Core[E, A], E, A, V any](l *Loop[C, E, A], handle func(C, time.Time, V) []A, event V) []A {
	now := l.Now()
	if l.Recorder != nil {
		event, _ = l.Recorder.Event(now, event).(V)
	}
	actions := handle(l.Core, now, event)
	if l.Recorder != nil {
		l.Recorder.Actions(actions)
	}
	l.apply(now, actions)
	if next, ok := l.Core.Next(); ok && (l.until.IsZero() || next.Before(l.until)) {
		if l.Tick != nil {
			l.tickAt(now, next)
			return actions
		}
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return actions
}

// tickAt sets the timer of Tick. Requires the lock.
func (l *Loop[C, E, A]) tickAt(now, at time.Time) {
	l.until = at
	if l.timer == nil {
		l.timer = time.AfterFunc(at.Sub(now), l.fired)
		return
	}
	l.timer.Reset(at.Sub(now))
}

// fired calls Tick, unless an event has postponed the tick.
func (l *Loop[C, E, A]) fired() {
	l.mu.Lock()
	l.until = time.Time{}
	next, ok := l.Core.Next()
	now := l.Now()
	due := ok && !now.Before(next)
	if ok && !due {
		l.tickAt(now, next)
	}
	l.mu.Unlock()
	if due {
		l.Tick()
	}
}

// StopTicks ends the calls of Tick, but for one that has begun. Events that come later may begin them again.
func (l *Loop[C, E, A]) StopTicks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.until = time.Time{}
}

// Lock takes the lock.
func (l *Loop[C, E, A]) Lock() { l.mu.Lock() }

// Unlock releases the lock and then makes the pending calls, unless another goroutine is
// making them.
func (l *Loop[C, E, A]) Unlock() {
	if l.calling {
		l.mu.Unlock()
		return
	}
	for len(l.calls) > 0 {
		l.calling = true
		call := l.calls[0]
		l.calls[0] = nil
		l.calls = l.calls[1:]
		l.mu.Unlock()
		call()
		l.mu.Lock()
	}
	if l.calling {
		l.calls, l.calling = nil, false
		l.quiet.Broadcast()
	}
	l.mu.Unlock()
}

// After has call called without the lock, after the next Unlock: one call at a time, in the
// order of After. Requires the lock.
func (l *Loop[C, E, A]) After(call func()) { l.calls = append(l.calls, call) }

// Wait blocks until all calls of After have returned. Such a call must not itself Wait.
func (l *Loop[C, E, A]) Wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.calling {
		l.quiet.Wait()
	}
}

// Run calls tick, which has to give the core a tick, whenever the core wants one, until done
// is closed. Only one goroutine at a time may call it.
func (l *Loop[C, E, A]) Run(done <-chan struct{}, tick func()) {
	for {
		select {
		case <-done:
			return
		case <-l.wake:
		case <-l.due():
			if l.tickDue() {
				tick()
			}
		}
	}
}

// tickDue reports whether the core wants a tick now: an event may have postponed it.
func (l *Loop[C, E, A]) tickDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, ok := l.Core.Next()
	return ok && !l.Now().Before(next)
}

// due returns a channel that receives when the core, in its present state, wants a tick; nil
// if it wants none.
func (l *Loop[C, E, A]) due() <-chan time.Time {
	l.mu.Lock()
	next, ok := l.Core.Next()
	if !ok {
		next = time.Time{}
	}
	l.until = next
	wait := next.Sub(l.Now())
	l.mu.Unlock()
	switch {
	case !ok:
		return nil
	case l.timer == nil:
		l.timer = time.NewTimer(wait)
	default:
		l.timer.Reset(wait)
	}
	return l.timer.C
}
