package routing

import (
	"sort"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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
	// heldSince is since when load reports alone kept a worker from it; zero: they did
	// not.
	heldSince time.Time
	// pool is the role that it waits for.
	pool   controlv1.Role
	number uint64
	// unasked: its objective is that of the default class.
	unasked bool
	// version that its workers have to have; zero: none is known.
	version Version
	// prefixes is who holds how much of its prompt.
	prefixes map[BlockKey]*prefix
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

// pump gives requests that wait to workers, in order. Behind one that waits because
// workers are full, others that want the same wait too, so that large ones do not starve.
func (rt *Router) pump(now time.Time) {
	if len(rt.queue.entries) == 0 {
		rt.queue.due = time.Time{}
		return
	}
	type group struct {
		model   string
		version Version
		mode    inferencev1.Mode
	}
	blocked := make(map[group]bool)
	defer rt.schedule()
	for i := 0; i < len(rt.queue.entries); {
		e := rt.queue.entries[i]
		if !now.Before(e.until) {
			rt.giveUp(e, rt.expired(now, e))
			continue
		}
		// A retried request may use fewer workers than others: neither waits behind the
		// other.
		retried := len(e.request.Failures) > 0
		if rt.assign(now, e) {
			e.noWorkerSince = time.Time{} // there are workers, about to answer
			i++
			continue
		}
		g := group{e.request.Model, e.version, e.request.Mode}
		if blocked[g] && !retried {
			e.noWorkerSince = time.Time{} // there is a worker, but it is full
			i++
			continue
		}
		switch fitness, refusal := rt.decide(now, e); {
		case fitness.usable():
			rt.queue.remove(e.request.ID)
		case fitness == later:
			e.noWorkerSince = time.Time{}
			blocked[g] = blocked[g] || !retried
			i++
		case fitness == excluded:
			if e.noWorkerSince.IsZero() {
				e.noWorkerSince = now
			}
			if now.Sub(e.noWorkerSince) >= rt.config.NoWorkerGrace {
				rt.giveUp(e, refusal)
				continue
			}
			i++
		default:
			rt.giveUp(e, refusal)
		}
	}
}

// schedule notes when the queue has to be looked at again, if nothing happens.
func (rt *Router) schedule() {
	rt.queue.due = time.Time{}
	for _, e := range rt.queue.entries {
		rt.queue.soon(e.until)
		if !e.noWorkerSince.IsZero() {
			rt.queue.soon(e.noWorkerSince.Add(rt.config.NoWorkerGrace))
		}
		if tried := e.heldSince.Add(rt.config.ReportDoubt); !e.heldSince.IsZero() && tried.After(rt.now) {
			rt.queue.soon(tried)
		}
	}
}

func (rt *Router) giveUp(e *entry, r Refusal) {
	rt.queue.remove(e.request.ID)
	rt.tenants.Leave(e.request.Tenant)
	rt.refuse(e.request.ID, r)
}
