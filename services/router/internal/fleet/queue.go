package fleet

import (
	"sort"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// entry is a request that waits.
type entry struct {
	request  Request
	enqueued time.Time
	// until is when waiting ends: the request's own deadline, the latest first
	// token that it wants, or the longest wait.
	until time.Time
	// noWorkerSince is since when no worker could ever take it; zero: one could.
	noWorkerSince time.Time
	// pool is the role that it waits for.
	pool   controlv1.Role
	number uint64
}

// before orders entries: priority, then deadline, then arrival.
func (e *entry) before(o *entry) bool {
	if e.request.Priority != o.request.Priority {
		return e.request.Priority > o.request.Priority
	}
	if !e.until.Equal(o.until) {
		return e.until.Before(o.until)
	}
	if !e.request.Arrived.Equal(o.request.Arrived) {
		return e.request.Arrived.Before(o.request.Arrived)
	}
	return e.number < o.number
}

// queue is the requests that wait, in the order in which they are served.
type queue struct {
	entries []*entry
	ids     map[string]*entry
}

func (q *queue) insert(e *entry) {
	i := sort.Search(len(q.entries), func(i int) bool { return e.before(q.entries[i]) })
	q.entries = append(q.entries, nil)
	copy(q.entries[i+1:], q.entries[i:])
	q.entries[i] = e
	q.ids[e.request.ID] = e
}

func (q *queue) remove(id string) *entry {
	e, ok := q.ids[id]
	if !ok {
		return nil
	}
	delete(q.ids, id)
	// The order is total, so the entry is where the search ends.
	i := sort.Search(len(q.entries), func(i int) bool { return !q.entries[i].before(e) })
	q.entries = append(q.entries[:i], q.entries[i+1:]...)
	return e
}
