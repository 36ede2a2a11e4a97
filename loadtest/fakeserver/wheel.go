package fakeserver

import (
	"sync"
	"time"

	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

// Event is a timed callback. The wheel's goroutine calls Fire at its time or soon after.
// Fire returns when to call it again, or again false for never. It must not block.
type Event interface {
	Fire() (next time.Duration, again bool)
}

// Wheel fires events from one goroutine. Thousands of Go timers would wake as many
// goroutines, in arbitrary order. Its methods are safe for concurrent use.
type Wheel struct {
	start    time.Time
	timer    finetimer.Timer
	coalesce time.Duration
	done     chan struct{}

	mu     sync.Mutex
	heap   []entry
	count  uint64
	closed bool
}

// entry is a waiting event. Those due at the same time fire in order.
type entry struct {
	at    time.Duration
	order uint64
	event Event
}

func (a entry) before(b entry) bool {
	return a.at < b.at || (a.at == b.at && a.order < b.order)
}

// NewWheel starts a wheel whose times count from start. Close ends it. The wheel takes
// over timer; nil: the most precise one. The wheel waits up to coalesce beyond an event's
// time, to fire more of them together: that is cheaper for thousands per millisecond, and
// resembles the tokens of one step of a real server.
func NewWheel(start time.Time, timer finetimer.Timer, coalesce time.Duration) *Wheel {
	if timer == nil {
		timer = finetimer.NewSpinning()
	}
	w := &Wheel{start: start, timer: timer, coalesce: coalesce, done: make(chan struct{})}
	go w.run()
	return w
}

// Now is the time since the start.
func (w *Wheel) Now() time.Duration { return time.Since(w.start) }

// At fires the event at that time, or at once if it is past. After Close it does nothing.
func (w *Wheel) At(at time.Duration, event Event) {
	w.mu.Lock()
	first := w.push(at, event)
	w.mu.Unlock()
	if first {
		w.timer.Wake()
	}
}

// Close ends the wheel's goroutine and waits for it. Waiting events are dropped.
func (w *Wheel) Close() error {
	w.mu.Lock()
	was := w.closed
	w.closed = true
	w.mu.Unlock()
	if was {
		return nil
	}
	w.timer.Wake()
	<-w.done
	return w.timer.Close()
}

// idle is how long the wheel waits when nothing is due.
const idle = time.Hour

func (w *Wheel) run() {
	defer close(w.done)
	var due, again []entry
	for {
		w.mu.Lock()
		for _, e := range again {
			w.push(e.at, e.event)
		}
		due, again = due[:0], again[:0]
		now := w.Now()
		for len(w.heap) > 0 && w.heap[0].at <= now {
			due = append(due, w.pop())
		}
		next := now + idle
		if len(w.heap) > 0 {
			next = w.heap[0].at + w.coalesce
		}
		closed := w.closed
		w.mu.Unlock()
		if closed {
			return
		}
		for _, e := range due {
			if at, more := e.event.Fire(); more {
				again = append(again, entry{at: at, event: e.event})
			}
		}
		if len(due) == 0 {
			w.timer.Wait(w.start.Add(next))
		}
	}
}

// push adds an entry and reports whether it is now first. Requires the lock.
func (w *Wheel) push(at time.Duration, event Event) bool {
	w.count++
	w.heap = append(w.heap, entry{at, w.count, event})
	i := len(w.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !w.heap[i].before(w.heap[parent]) {
			break
		}
		w.heap[i], w.heap[parent] = w.heap[parent], w.heap[i]
		i = parent
	}
	return i == 0
}

// pop removes the first entry. Requires the lock.
func (w *Wheel) pop() entry {
	first, last := w.heap[0], len(w.heap)-1
	w.heap[0] = w.heap[last]
	w.heap[last] = entry{}
	w.heap = w.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if w.heap[child].before(w.heap[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		w.heap[i], w.heap[least] = w.heap[least], w.heap[i]
		i = least
	}
}
