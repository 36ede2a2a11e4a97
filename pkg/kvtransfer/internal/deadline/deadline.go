// Package deadline is a priority queue of a state machine's deadlines. Only pkg/kvtransfer
// uses it. It reads no clock, starts no goroutines and is not safe for concurrent use.
package deadline

import (
	"container/heap"
	"time"
)

// Queue holds at most one deadline per key. Operations take logarithmic time. Create it
// with New.
type Queue[K comparable] struct {
	entries entries[K]
	byKey   map[K]*entry[K]
	free    []*entry[K] // for reuse: no allocation in the long run
}

// New returns an empty queue.
func New[K comparable]() *Queue[K] { return &Queue[K]{byKey: map[K]*entry[K]{}} }

// Set sets the deadline of key, replacing the old one.
func (q *Queue[K]) Set(key K, at time.Time) {
	if e := q.byKey[key]; e != nil {
		e.at = at
		heap.Fix(&q.entries, e.index)
		return
	}
	var e *entry[K]
	if last := len(q.free) - 1; last >= 0 {
		e, q.free = q.free[last], q.free[:last]
	} else {
		e = new(entry[K])
	}
	e.key, e.at = key, at
	q.byKey[key] = e
	heap.Push(&q.entries, e)
}

// Clear removes the deadline of key, if any.
func (q *Queue[K]) Clear(key K) {
	if e := q.byKey[key]; e != nil {
		heap.Remove(&q.entries, e.index)
		delete(q.byKey, key)
		q.free = append(q.free, e)
	}
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

type entry[K comparable] struct {
	key   K
	at    time.Time
	index int
}

// entries is the heap.
type entries[K comparable] []*entry[K]

func (h entries[K]) Len() int           { return len(h) }
func (h entries[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h entries[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *entries[K]) Push(x any) {
	e, ok := x.(*entry[K])
	if !ok {
		return
	}
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *entries[K]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
