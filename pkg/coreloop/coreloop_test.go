package coreloop_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/coreloop"
)

type (
	// event is one of the types below, and so is action.
	event  any
	action any

	wait struct{ until time.Duration } // wants a tick then, counted from the start; 0: none
	tick struct{}
	say  struct{ word string }
	said struct{ word string }
)

// core says what it is told to say, and wants ticks when it is told to.
type core struct {
	start, next time.Time
	ticks       []time.Duration // when they came
	out         []action
}

func (c *core) Handle(now time.Time, e event) []action {
	switch e := e.(type) {
	case wait:
		c.next = time.Time{}
		if e.until > 0 {
			c.next = c.start.Add(e.until)
		}
	case tick:
		c.ticks = append(c.ticks, now.Sub(c.start))
		c.next = time.Time{}
	case say:
		return c.HandleSay(now, e)
	}
	return nil
}

func (c *core) HandleSay(_ time.Time, e say) []action {
	c.out = append(c.out[:0], &said{e.word})
	return c.out
}

func (c *core) Next() (time.Time, bool) { return c.next, !c.next.IsZero() }

type loop = coreloop.Loop[*core, event, action]

func newLoop(apply func(actions []action)) *loop {
	return coreloop.New(&core{start: time.Now()}, func(_ time.Time, actions []action) {
		if apply != nil {
			apply(actions)
		}
	})
}

// run runs a loop until the test's end.
func run(t *testing.T, l *loop) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { l.Run(done, func() { l.Handle(tick{}) }) })
	t.Cleanup(func() { close(done); running.Wait() })
}

// Ticks come when the core wants them, once, whatever it wanted before.
func TestTicks(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name  string
		waits map[time.Duration]time.Duration // at a time: until when
		want  []time.Duration
	}{
		{"none", nil, nil},
		{"one", map[time.Duration]time.Duration{0: 3 * s}, []time.Duration{3 * s}},
		{"one after another", map[time.Duration]time.Duration{0: 3 * s, 4 * s: 5 * s}, []time.Duration{3 * s, 5 * s}},
		{"earlier", map[time.Duration]time.Duration{0: 9 * s, s: 2 * s}, []time.Duration{2 * s}},
		{"later", map[time.Duration]time.Duration{0: 3 * s, s: 5 * s}, []time.Duration{5 * s}},
		{"later, then earlier", map[time.Duration]time.Duration{0: 3 * s, s: 9 * s, 2 * s: 4 * s}, []time.Duration{4 * s}},
		{"due at once", map[time.Duration]time.Duration{2 * s: s}, []time.Duration{2 * s}},
		{"not any more", map[time.Duration]time.Duration{0: 3 * s, s: 0}, nil},
		{"again after that", map[time.Duration]time.Duration{0: 3 * s, s: 0, 2 * s: 3 * s}, []time.Duration{3 * s}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, ticks := range []func(*testing.T, *loop){
				run,
				func(t *testing.T, l *loop) { run(t, l); synctest.Wait() }, // Run asks Next before the first event
				func(_ *testing.T, l *loop) { l.Tick = func() { l.Handle(tick{}) } },
			} {
				synctest.Test(t, func(t *testing.T) {
					l := newLoop(nil)
					ticks(t, l)
					for at := time.Duration(0); at < 10*s; at += s {
						if until, is := test.waits[at]; is {
							l.Handle(wait{until})
						}
						time.Sleep(s)
					}
					l.Lock()
					defer l.Unlock()
					if !slices.Equal(l.Core.ticks, test.want) {
						t.Errorf("ticks at %v instead of %v", l.Core.ticks, test.want)
					}
				})
			}
		})
	}
}

// Ticks of a timer end when they are told to, and begin again with an event.
func TestStopTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(nil)
		l.Tick = func() { l.Handle(tick{}) }
		l.StopTicks() // none has begun
		l.Handle(wait{5 * time.Second})
		l.StopTicks()
		time.Sleep(10 * time.Second)
		l.Handle(wait{12 * time.Second})
		time.Sleep(10 * time.Second)
		l.Lock()
		defer l.Unlock()
		if want := []time.Duration{12 * time.Second}; !slices.Equal(l.Core.ticks, want) {
			t.Errorf("ticks at %v instead of %v", l.Core.ticks, want)
		}
	})
}

// Run ends when it is told to, though ticks are due, and may be called again.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(nil)
		l.Handle(wait{time.Hour})
		done := make(chan struct{})
		close(done)
		l.Run(done, func() { t.Error("ticked") })
		run(t, l)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(l.Core.ticks) != 1 {
			t.Errorf("ticks at %v instead of one", l.Core.ticks)
		}
	})
}

// Whoever hands in events, the calls for their actions come in the order of the actions,
// one at a time and without the lock; and Wait waits for all of them, also for those
// that the calls themselves cause.
func TestCallsKeepTheirOrder(t *testing.T) {
	const goroutines, events = 8, 200
	var l *loop
	var applied, called []string // under the lock; by one call after another
	l = newLoop(func(actions []action) {
		for _, a := range actions {
			word := a.(*said).word
			applied = append(applied, word)
			l.After(func() {
				called = append(called, word)
				if word[0] != '+' {
					l.Handle(say{"+" + word}) // takes the lock
				}
			})
		}
	})
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range events {
				l.Handle(say{fmt.Sprint(g, ".", i)})
			}
		})
	}
	all.Wait()
	l.Wait()
	if len(called) != 2*goroutines*events || !slices.Equal(applied, called) {
		t.Errorf("%d actions were applied and %d calls made, or not in the same order", len(applied), len(called))
	}
}

// Events go on while a call takes long, and Wait waits for it.
func TestWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *loop
		var called []string
		l = newLoop(func(actions []action) {
			for _, a := range actions {
				l.After(func() {
					time.Sleep(time.Minute)
					called = append(called, a.(*said).word)
				})
			}
		})
		l.Wait() // for nothing
		start := time.Now()
		go l.Handle(say{"first"})
		synctest.Wait()
		l.Handle(say{"second"}) // whose call the other goroutine makes
		if time.Since(start) != 0 {
			t.Error("an event waited for the call of another")
		}
		l.Wait()
		if !slices.Equal(called, []string{"first", "second"}) || time.Since(start) != 2*time.Minute {
			t.Errorf("%q were called after %v", called, time.Since(start))
		}
	})
}

// recorder notes what it is told, and shouts.
type recorder struct{ told []string }

func (r *recorder) Event(now time.Time, e any) any {
	if said, is := e.(say); is {
		e = say{said.word + "!"}
	}
	r.told = append(r.told, fmt.Sprintf("%d %v", now.Unix(), e))
	return e
}

func (r *recorder) Actions(actions any) {
	list, _ := actions.([]action)
	for _, a := range list {
		r.told = append(r.told, a.(*said).word)
	}
}

// A recorder is told of events in the order in which the core gets them, also of those that
// actions cause, each with its time, and of the actions before they are carried out. The core
// gets what it returns.
func TestRecorder(t *testing.T) {
	var l *loop
	l = newLoop(func(actions []action) {
		for _, a := range actions {
			if word := a.(*said).word; word != "inner!" {
				l.Step(say{"inner"})
			}
		}
	})
	now := time.Unix(1000, 0)
	l.Now = func() time.Time { now = now.Add(time.Second); return now }
	var r recorder
	l.Recorder = &r
	l.Handle(wait{})
	coreloop.Handle(l, (*core).HandleSay, say{"outer"})
	if want := []string{"1001 {0}", "1002 {outer!}", "outer!", "1003 {inner!}", "inner!"}; !slices.Equal(r.told, want) {
		t.Errorf("told of %q instead of %q", r.told, want)
	}
}

// An event for a method that takes one type of event is not allocated.
func TestTypedEventsAllocateNothing(t *testing.T) {
	l := coreloop.New(counter{new(int)}, func(time.Time, []action) {})
	if n := testing.AllocsPerRun(100, func() { coreloop.Handle(l, counter.HandleSay, say{"word"}) }); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// counter counts events and has no actions.
type counter struct{ events *int }

func (c counter) Handle(time.Time, event) []action      { *c.events++; return nil }
func (c counter) HandleSay(_ time.Time, e say) []action { *c.events += len(e.word); return nil }
func (counter) Next() (at time.Time, ok bool)           { return time.Time{}, false }
