package simulate

import "time"

// clock is virtual time: what is to happen, in order. What happens at one moment happens in
// the order in which it was planned.
type clock struct {
	now     time.Time
	at      int64  // now, as moments have it
	planned uint64 // so far
	soon    heap
	// timers are apart: most are far ahead and over before they are due, and there are many.
	timers heap
}

// heap has what is planned, the first first.
type heap []planned

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
type event interface{ happen() }

// later is an event that is a function.
type later func()

func (f later) happen() { f() }

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

func (h *heap) push(m moment, e event) {
	*h = append(*h, planned{})
	all := *h
	i := len(all) - 1
	for i > 0 {
		parent := (i - 1) / ways
		if !m.before(all[parent].moment) {
			break
		}
		all[i] = all[parent]
		i = parent
	}
	all[i] = planned{m, e}
}

func (c *clock) after(d time.Duration, do func()) { c.soon.push(c.momentAt(c.at+int64(d)), later(do)) }

// step lets the next thing happen, unless there is none or it is after until.
func (c *clock) step(until int64) bool {
	h := &c.soon
	if len(c.timers) > 0 && (len(c.soon) == 0 || c.timers[0].before(c.soon[0].moment)) {
		h = &c.timers
	}
	if len(*h) == 0 || (*h)[0].at > until {
		return false
	}
	first := (*h)[0]
	if first.at != c.at {
		c.at, c.now = first.at, epoch.Add(time.Duration(first.at))
	}
	if p, is := first.event.(*pipe); is {
		message := p.next()
		if next, more := p.due(); more { // it stays where it is, or near
			h.sink(planned{next, p})
		} else {
			h.pop()
		}
		p.deliver(message)
		return true
	}
	h.pop()
	first.event.happen()
	return true
}

// pop takes the first out.
func (h *heap) pop() {
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[last] = planned{}
	if *h = (*h)[:last]; last > 0 {
		h.sink(moved)
	}
}

// ways is how many children each place of the heap has: they lie beside each other in memory.
const ways = 4

// sink puts something in place of the first.
func (h heap) sink(p planned) {
	i, n := 0, len(h)
	for {
		child := ways*i + 1
		if child >= n {
			break
		}
		for other := child + 1; other < min(ways*i+1+ways, n); other++ {
			if h[other].before(h[child].moment) {
				child = other
			}
		}
		if !h[child].before(p.moment) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = p
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
	t.clock.timers.push(t.clock.moment(next), t)
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
