package simulate

import "time"

// clock is virtual time: what is to happen, in order. What happens at one moment happens in
// the order in which it was planned.
type clock struct {
	now     time.Time
	planned uint64 // so far
	heap    []planned
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
type event interface{ happen() }

// later is an event that is a function.
type later func()

func (f later) happen() { f() }

// epoch is when every simulation begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// at plans something; what is over already happens now.
func (c *clock) at(when time.Time, do func()) { c.push(c.moment(when), later(do)) }

// moment is the next of what is planned for a time, or for now if that is over.
func (c *clock) moment(when time.Time) moment {
	if when.Before(c.now) {
		when = c.now
	}
	c.planned++
	return moment{at: int64(when.Sub(epoch)), order: c.planned}
}

func (c *clock) push(m moment, e event) {
	c.heap = append(c.heap, planned{})
	i := len(c.heap) - 1
	for i > 0 {
		parent := (i - 1) / ways
		if !m.before(c.heap[parent].moment) {
			break
		}
		c.heap[i] = c.heap[parent]
		i = parent
	}
	c.heap[i] = planned{m, e}
}

func (c *clock) after(d time.Duration, do func()) { c.at(c.now.Add(d), do) }

// step lets the next thing happen, unless there is none or it is after until.
func (c *clock) step(until time.Time) bool {
	if len(c.heap) == 0 || c.heap[0].at > int64(until.Sub(epoch)) {
		return false
	}
	first := c.heap[0]
	c.now = epoch.Add(time.Duration(first.at))
	if p, is := first.event.(*pipe); is {
		message := p.next()
		if next, more := p.due(); more { // it stays where it is, or near
			c.sink(planned{next, p})
		} else {
			c.pop()
		}
		p.deliver(message)
		return true
	}
	c.pop()
	first.event.happen()
	return true
}

// pop takes the first out.
func (c *clock) pop() {
	last := len(c.heap) - 1
	moved := c.heap[last]
	c.heap[last] = planned{}
	if c.heap = c.heap[:last]; last > 0 {
		c.sink(moved)
	}
}

// ways is how many children each place of the heap has: they lie beside each other in memory.
const ways = 4

// sink puts something in place of the first.
func (c *clock) sink(p planned) {
	i, n := 0, len(c.heap)
	for {
		child := ways*i + 1
		if child >= n {
			break
		}
		for other := child + 1; other < min(ways*i+1+ways, n); other++ {
			if c.heap[other].before(c.heap[child].moment) {
				child = other
			}
		}
		if !c.heap[child].before(p.moment) {
			break
		}
		c.heap[i] = c.heap[child]
		i = child
	}
	c.heap[i] = p
}

// timer ticks a core when it wants that.
type timer struct {
	clock *clock
	next  func() (time.Time, bool) // the core's
	tick  func()
	at    time.Time // when the planned wake-up is; zero: there is none
}

// set plans a wake-up if the core wants one before the one that is planned.
func (t *timer) set() {
	next, wants := t.next()
	if !wants || !t.at.IsZero() && !next.Before(t.at) {
		return
	}
	if next.Before(t.clock.now) {
		next = t.clock.now
	}
	t.at = next
	t.clock.push(t.clock.moment(next), t)
}

// happen is a wake-up that was planned.
func (t *timer) happen() {
	if !t.at.Equal(t.clock.now) {
		return // an earlier one was planned since
	}
	t.at = time.Time{}
	if next, wants := t.next(); wants && !next.After(t.clock.now) {
		t.tick()
	}
	t.set()
}
