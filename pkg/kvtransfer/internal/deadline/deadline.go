// Package deadline is a priority queue of a state machine's deadlines. Only pkg/kvtransfer
// uses it. It reads no clock, starts no goroutines and is not safe for concurrent use.
package deadline

import "time"

// Queue holds at most one deadline per key. Operations take logarithmic time. Create it
// with New.
type Queue[K comparable] struct {
	// A binary heap. Not container/heap: several deadlines are set for every chunk, and its
	// calls through an interface cost more than the rest of that.
	entries []*entry[K]
	byKey   map[K]*entry[K]
	free    []*entry[K] // for reuse: no allocation in the long run
}

type entry[K comparable] struct {
	at    time.Time
	index int
	key   K
}

// New returns an empty queue.
func New[K comparable]() *Queue[K] { return &Queue[K]{byKey: map[K]*entry[K]{}} }

// Set sets the deadline of key, replacing the old one.
func (q *Queue[K]) Set(key K, at time.Time) {
	if e := q.byKey[key]; e != nil {
		e.at = at
		q.fix(e.index)
		return
	}
	var e *entry[K]
	if last := len(q.free) - 1; last >= 0 {
		e, q.free = q.free[last], q.free[:last]
	} else {
		e = new(entry[K])
	}
	e.key, e.at, e.index = key, at, len(q.entries)
	q.byKey[key] = e
	q.entries = append(q.entries, e)
	q.up(e.index)
}

// Clear removes the deadline of key, if any.
func (q *Queue[K]) Clear(key K) {
	e := q.byKey[key]
	if e == nil {
		return
	}
	i, last := e.index, len(q.entries)-1
	q.swap(i, last)
	q.entries[last] = nil
	if q.entries = q.entries[:last]; i < last {
		q.fix(i)
	}
	delete(q.byKey, key)
	q.free = append(q.free, e)
}

// Has reports whether key has a deadline.
func (q *Queue[K]) Has(key K) bool { return q.byKey[key] != nil }

// Next returns the earliest deadline; ok is false if there is none.
func (q *Queue[K]) Next() (at time.Time, ok bool) {
	if len(q.entries) == 0 {
		return time.Time{}, false
	}
	return q.entries[0].at, true
}

// Pop removes one key whose deadline is not after now; ok is false if there is none.
func (q *Queue[K]) Pop(now time.Time) (key K, ok bool) {
	if len(q.entries) == 0 || q.entries[0].at.After(now) {
		return key, false
	}
	key = q.entries[0].key
	q.Clear(key)
	return key, true
}

// fix moves an entry whose deadline changed to where it belongs.
func (q *Queue[K]) fix(i int) {
	if !q.down(i) {
		q.up(i)
	}
}

func (q *Queue[K]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.before(i, parent) {
			return
		}
		q.swap(i, parent)
		i = parent
	}
}

// down reports whether the entry moved.
func (q *Queue[K]) down(i int) bool {
	from := i
	for {
		child := 2*i + 1
		if child >= len(q.entries) {
			break
		}
		if right := child + 1; right < len(q.entries) && q.before(right, child) {
			child = right
		}
		if !q.before(child, i) {
			break
		}
		q.swap(i, child)
		i = child
	}
	return i > from
}

func (q *Queue[K]) before(i, j int) bool { return q.entries[i].at.Before(q.entries[j].at) }

func (q *Queue[K]) swap(i, j int) {
	h := q.entries
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
