package fleet

import (
	"sort"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
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
	// prefixes is its block hashes, by what they depend on beside its tokens.
	prefixes map[prefixKey]*prefix
}

// prefixKey is what block hashes depend on beside the tokens.
type prefixKey struct {
	modelDigest string
	class       string
	blockTokens int
}

// prefix is a request's block hashes, computed once, and how many of them each
// worker held at one look.
type prefix struct {
	hashes []kvcache.Hash
	held   map[string]int
	look   uint64
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
	// due is when the first of them has waited for long enough, as of the last
	// pump; zero if none waits.
	due time.Time
}

// soon lets due be no later than t.
func (q *queue) soon(t time.Time) {
	if q.due.IsZero() || t.Before(q.due) {
		q.due = t
	}
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
