package routing

import (
	"slices"
	"time"
)

// peerLoads is what other routers said last of each worker. Reports come all the time and are of
// many workers, so each router's is a table by the workers' numbers, and the sums over them are
// made when somebody asks.
type peerLoads struct {
	told []*otherRouter // those of which something counts, by when they said it
	// numbers are how many numbers of workers there were, free those that are not used.
	numbers int
	free    []int
	refs    []numbered // of Router.order; nil: that has changed since
	// tells is by the workers' numbers whether there may be something of this router's to tell.
	tells []bool
}

// numbered is a worker with its number.
type numbered struct {
	ref    Ref
	number int
	worker *worker
}

// toldShare is what one router says of one worker.
type toldShare struct {
	report  uint64 // in which it said that, the last one if it counts
	prompts float64
	// sent are those of told.sent that the last load report of the worker may not count.
	sent struct{ from, to int32 }
}

// number gives a worker a number that no other has.
func (x *peerLoads) number(w *worker) {
	w.peerLoads, w.number = x, x.numbers
	if last := len(x.free) - 1; last >= 0 {
		w.number, x.free = x.free[last], x.free[:last]
		return
	}
	x.numbers, x.tells = x.numbers+1, append(x.tells, false)
}

// drop takes a worker's number back, with all that was said of it.
func (x *peerLoads) drop(w *worker) {
	for _, t := range x.told {
		if s := t.share(w); s != nil {
			s.report = 0
		}
	}
	x.free, x.refs, x.tells[w.number] = append(x.free, w.number), nil, false
}

// ordered are the workers of Router.order, with what it takes to find one beside one another.
func (x *peerLoads) ordered(order []*worker) []numbered {
	if x.refs == nil {
		x.refs = make([]numbered, len(order))
		for i, w := range order {
			x.refs[i] = numbered{w.ref, w.number, w}
		}
	}
	return x.refs
}

// find is a worker that comes from place at on in an order, and the place after it; nil: it does
// not, and at is where the ones after it do.
func (x *peerLoads) find(order []*worker, ref Ref, at int) (*numbered, int) {
	refs := x.ordered(order)
	for i := at; i < len(refs); i++ {
		switch r := &refs[i]; {
		case r.ref == ref:
			return r, i + 1
		case r.ref.ID > ref.ID:
			return nil, i
		}
	}
	return nil, len(refs)
}

// said has what a router said count from now on, as a report with nothing in it.
func (x *peerLoads) said(now time.Time, t *otherRouter, report uint64) {
	x.forget(t)
	t.at, t.report = now, report
	if missing := x.numbers - len(t.shares); missing > 0 {
		t.shares = append(t.shares, make([]toldShare, missing)...)
	}
	x.told = append(x.told, t)
}

// forget has nothing of what a router said count any more.
func (x *peerLoads) forget(t *otherRouter) {
	x.told = slices.DeleteFunc(x.told, func(o *otherRouter) bool { return o == t })
	t.report, t.sent, t.held = 0, t.sent[:0], t.held[:0]
}

// expire forgets what was said before a time.
func (x *peerLoads) expire(before time.Time) {
	for len(x.told) > 0 && x.told[0].at.Before(before) {
		x.forget(x.told[0])
	}
}

// share is what counts of a worker; nil: nothing does.
func (t *otherRouter) share(w *worker) *toldShare {
	if w.number < len(t.shares) && t.shares[w.number].report == t.report {
		return &t.shares[w.number]
	}
	return nil
}

// of are the requests that a share is of.
func (t *otherRouter) of(s *toldShare) []requestLoad { return t.sent[s.sent.from:s.sent.to] }

// ofOtherRouters is the sum of the requests that other routers say they sent and that the last load
// report does not count, and the share of the worker's time that their prompts took.
func (w *worker) ofOtherRouters() (sent loadSum, prompts float64) {
	for _, t := range w.peerLoads.told {
		if s := t.share(w); s != nil {
			prompts += s.prompts
			for i := s.sent.from; i < s.sent.to; i++ {
				sent.add(&t.sent[i].loadSum, 1)
			}
		}
	}
	return sent, prompts
}

// counted takes in that a load report counts so many tasks, and the last one counted before. What other
// routers sent and it counts now no longer counts here. If it counts tasks that nobody is known to have
// sent, each request without a number may be one of them: then none of these counts until its router
// says more. For a moment that is too few, which is better than to count one twice.
func (w *worker) counted(before, tasks uint64) {
	if tasks <= before {
		return
	}
	unknown := int64(tasks - before)
	known := func(s *requestLoad) {
		if s.task > before && s.task <= tasks {
			unknown--
		}
	}
	for _, s := range w.unseen {
		known(s)
	}
	w.eachOther(known)
	for _, t := range w.peerLoads.told {
		if s := t.share(w); s != nil {
			left := slices.DeleteFunc(t.of(s), func(s requestLoad) bool {
				return s.task > 0 && s.task <= tasks || s.task == 0 && unknown > 0
			})
			s.sent.to = s.sent.from + int32(len(left))
		}
	}
}

// eachOther calls do with each request that another router sent and the last load report does not
// count.
func (w *worker) eachOther(do func(*requestLoad)) {
	for _, t := range w.peerLoads.told {
		if s := t.share(w); s != nil {
			for i := range t.of(s) {
				do(&t.of(s)[i])
			}
		}
	}
}
