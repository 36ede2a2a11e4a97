package simulate

// queue has what is planned. What happens soon is in slots of time, so that planning it takes one write;
// what is far ahead is in a heap, and most of that are timers that are over before they are due. When
// time enters a slot, all that happens in it is known, and the processor reads what it will need. It
// waits for many lines of memory at a time where none of them has to be there for the next.
type queue struct {
	now  int64 // the slot that time is in
	near heap  // what happens in it or before
	// slots have what happens in the ones after it, by their number modulo slotCount, in any order.
	slots [slotCount][]planned
	count int         // in slots
	far   heap        // what happens after those
	spare [][]planned // slots to be used again
	read  int         // means nothing: enter has to do something with what it reads
}

const (
	// slotBits: a slot is 33 µs, less than a message takes between hosts, which therefore is in the queue
	// before time enters its slot.
	slotBits  = 15
	slotCount = 4096
	// spareMost bounds what is kept for slots to come.
	spareMost = 1024
)

// push adds what happens at a moment.
func (q *queue) push(m moment, e event) {
	slot := m.at >> slotBits
	switch {
	case slot <= q.now:
		q.near.push(planned{m, e})
	case slot-q.now >= slotCount:
		q.far.push(planned{m, e})
	default:
		q.put(slot, planned{m, e})
	}
}

// put adds to a slot that is ahead.
func (q *queue) put(slot int64, p planned) {
	s := &q.slots[slot%slotCount]
	if last := len(q.spare) - 1; *s == nil && last >= 0 {
		*s, q.spare = q.spare[last], q.spare[:last]
	}
	*s = append(*s, p)
	q.count++
}

// pop takes out what happens first, unless there is nothing or it happens after until.
func (q *queue) pop(until int64) (planned, bool) {
	for len(q.near) == 0 {
		if !q.advance(until) {
			return planned{}, false
		}
	}
	if q.near[0].at > until {
		return planned{}, false
	}
	return q.near.pop(), true
}

// advance enters the next slot in which something happens, unless that is after until.
func (q *queue) advance(until int64) bool {
	next := q.now + 1
	switch {
	case q.count > 0:
		for len(q.slots[next%slotCount]) == 0 {
			next++
		}
		if len(q.far) > 0 {
			next = min(next, q.far[0].at>>slotBits)
		}
	case len(q.far) > 0:
		next = q.far[0].at >> slotBits
	default:
		return false
	}
	if next<<slotBits > until {
		return false
	}
	q.enter(next)
	return true
}

// enter has time be in a slot.
func (q *queue) enter(slot int64) {
	q.now = slot
	if len(q.spare) < spareMost && cap(q.near) > 0 {
		q.spare = append(q.spare, q.near)
	}
	s := &q.slots[slot%slotCount]
	q.near, *s = *s, nil
	q.count -= len(q.near)
	for len(q.far) > 0 && q.far[0].at>>slotBits <= slot {
		q.near = append(q.near, q.far.pop())
	}
	for stage := range stages {
		for i := range q.near {
			q.read += q.near[i].event.fetch(stage)
		}
	}
	q.near.order()
}

// heap has what is planned, the first first.
type heap []planned

// ways is how many children each place of the heap has: they lie beside each other in memory.
const ways = 4

func (h *heap) push(p planned) {
	*h = append(*h, planned{})
	all := *h
	i := len(all) - 1
	for i > 0 {
		parent := (i - 1) / ways
		if !p.before(all[parent].moment) {
			break
		}
		all[i] = all[parent]
		i = parent
	}
	all[i] = p
}

// pop takes the first out.
func (h *heap) pop() planned {
	first, last := (*h)[0], len(*h)-1
	moved := (*h)[last]
	(*h)[last] = planned{}
	if *h = (*h)[:last]; last > 0 {
		h.sink(0, moved)
	}
	return first
}

// order makes a heap of what is in any order.
func (h heap) order() {
	for i := (len(h) - 2 + ways) / ways; i > 0; i-- {
		h.sink(i-1, h[i-1])
	}
}

// sink puts something in place of what is at i, or below.
func (h heap) sink(i int, p planned) {
	for n := len(h); ; {
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
