package routing

import (
	"slices"
	"time"
)

// waking is when time alone lets a worker take a request that waits. Next asks for it after every event
// while one waits, and of very many workers it cannot look at each.
type waking struct {
	known bool // false: Router.order has changed since
	// reported are the workers of Router.order by their numbers, in a list by when they last reported
	// their load: first the longest ago. Those whose reports are too old may be missing.
	reported    []reportedAt
	workers     []*worker // by their numbers, too
	first, last int32     // -1: the list is empty
	// left are workers that were busy or suspected lately, and others.
	left []*worker
}

// reportedAt is the place of a worker in the list. It is small, since each load report changes some.
type reportedAt struct {
	before, after int32 // -1: there is none
	known         bool  // it is in Router.order
	listed        bool  // it is in the list
	left          bool  // it is in waking.left
}

// at is what is kept of a worker; nil: nothing.
func (k *waking) at(w *worker) *reportedAt {
	if !k.known || w.number >= len(k.reported) || !k.reported[w.number].known {
		return nil
	}
	return &k.reported[w.number]
}

// report takes in that a worker has reported its load now.
func (k *waking) report(w *worker) {
	at, number := k.at(w), int32(w.number)
	if at == nil || k.last == number {
		return
	}
	k.unlist(at)
	at.before, at.after, at.listed = k.last, -1, true
	if k.last >= 0 {
		k.reported[k.last].after = number
	} else {
		k.first = number
	}
	k.last = number
}

// unlist takes a worker out of the list, if it is there.
func (k *waking) unlist(at *reportedAt) {
	if !at.listed {
		return
	}
	at.listed = false
	if at.before >= 0 {
		k.reported[at.before].after = at.after
	} else {
		k.first = at.after
	}
	if at.after >= 0 {
		k.reported[at.after].before = at.before
	} else {
		k.last = at.before
	}
}

// leave takes in that a worker is left alone until some time.
func (k *waking) leave(w *worker) {
	if at := k.at(w); at != nil && !at.left {
		at.left, k.left = true, append(k.left, w)
	}
}

// learn begins anew.
func (k *waking) learn(workers []*worker, numbers int) {
	*k = waking{known: true, reported: make([]reportedAt, numbers), workers: make([]*worker, numbers), first: -1, last: -1}
	for _, w := range workers {
		k.reported[w.number].known, k.workers[w.number] = true, w
		k.leave(w)
	}
	for _, w := range slices.SortedFunc(slices.Values(workers), func(a, b *worker) int { return a.loadAt.Compare(b.loadAt) }) {
		k.report(w)
	}
}

// nextOfWaiting is when the first worker may take requests again that it was not given for a while, or
// its load report is too old: from then on the router goes by its own account, by which the worker may
// not be full. Zero: there is none.
func (rt *Router) nextOfWaiting() (next time.Time) {
	k := &rt.waking
	if !k.known {
		k.learn(rt.order, rt.peerLoads.numbers)
	}
	k.left = slices.DeleteFunc(k.left, func(w *worker) bool {
		busy := w.busyUntil.After(rt.now)
		if busy {
			soonest(&next, w.busyUntil)
		}
		if w.avoided(rt.now) {
			soonest(&next, w.until)
		}
		over := !busy && !w.suspected()
		if over {
			k.reported[w.number].left = false
		}
		return over
	})
	for k.first >= 0 {
		if w := k.workers[k.first]; w.fresh(rt.now, rt.config.LoadStale) {
			soonest(&next, w.loadAt.Add(rt.config.LoadStale+1))
			break
		}
		k.unlist(&k.reported[k.first]) // until it reports again
	}
	return next
}
