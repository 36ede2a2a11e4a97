package simulate

import "time"

// clock is virtual time: what is to happen, in order. What happens at one moment happens in
// the order in which it was planned.
type clock struct {
	now     time.Time
	at      int64  // now, as moments have it
	planned uint64 // so far
	soon    queue
}

// planned is when something happens.
type planned struct {
	moment
	event event
}

// moment orders what happens.
type moment struct {
	at    int64 // nanoseconds since the epoch
	order uint64
}

func (m moment) before(o moment) bool {
	return m.at < o.at || m.at == o.at && m.order < o.order
}

// event is something that happens.
type event interface {
	happen()
	// fetch has the processor read some of what happen will need, a little before: at each stage, from 0
	// to stages-1, what the ones before it read leads to. What it returns means nothing.
	fetch(stage int) int
}

const stages = 5

// later is an event that is a function.
type later func()

func (f later) happen()       { f() }
func (f later) fetch(int) int { return 0 }

// epoch is when every simulation begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// plan plans something; what is over already happens now.
func (c *clock) plan(when time.Time, do func()) { c.soon.push(c.moment(when), later(do)) }

// set makes it a later time.
func (c *clock) set(now time.Time) { c.now, c.at = now, int64(now.Sub(epoch)) }

// moment is the next of what is planned for a time, or for now if that is over.
func (c *clock) moment(when time.Time) moment { return c.momentAt(int64(when.Sub(epoch))) }

func (c *clock) momentAt(at int64) moment {
	c.planned++
	return moment{at: max(at, c.at), order: c.planned}
}

func (c *clock) after(d time.Duration, do func()) { c.soon.push(c.momentAt(c.at+int64(d)), later(do)) }

// step lets the next thing happen, unless there is none or it is after until.
func (c *clock) step(until int64) bool {
	first, is := c.soon.pop(until)
	if !is {
		return false
	}
	if first.at != c.at {
		c.at, c.now = first.at, epoch.Add(time.Duration(first.at))
	}
	first.event.happen()
	return true
}

// timer ticks a core when it wants that.
type timer struct {
	clock *clock
	of    ticked
	at    time.Time // when the planned wake-up is; zero: there is none
}

// ticked is what a timer ticks when it says that it wants that.
type ticked interface {
	next() (at time.Time, wants bool)
	tick()
}

// set plans a wake-up if the core wants one before the one that is planned.
func (t *timer) set() {
	next, wants := t.of.next()
	if !wants || !t.at.IsZero() && !next.Before(t.at) {
		return
	}
	if next.Before(t.clock.now) {
		next = t.clock.now
	}
	t.at = next
	t.clock.soon.push(t.clock.moment(next), t)
}

func (t *timer) fetch(stage int) int {
	if stage > 0 {
		return 0
	}
	return t.at.Nanosecond()
}

// happen is a wake-up that was planned.
func (t *timer) happen() {
	if !t.at.Equal(t.clock.now) {
		return // an earlier one was planned since
	}
	t.at = time.Time{}
	if next, wants := t.of.next(); wants && !next.After(t.clock.now) {
		t.of.tick()
	}
	t.set()
}
