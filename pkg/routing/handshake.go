package routing

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// What etcd lists is an address book, which anybody who can write to etcd can fill. A
// worker counts once it has answered at its address and said who it is. Until then its
// record costs a connection attempt from time to time, and no request considers it.

// maxWorkers bounds the workers, block stores included, of which the router keeps track.
const maxWorkers = 4096

// maxShownUnanswered bounds the workers without an answer that operators are shown.
const maxShownUnanswered = 256

// register takes in a record that etcd lists.
func (rt *Router) register(record *controlv1.WorkerRecord) {
	w := rt.workers[record.GetId()]
	switch {
	case w != nil && w.is(record):
		rt.forgetSuccessor(w) // etcd listed another incarnation for a moment
	case w != nil && w.successor != nil && w.successor.is(record):
		w = w.successor
	case w != nil && w.connected:
		// The new incarnation takes the place of one that answers once it answers too.
		rt.forgetSuccessor(w)
		w.successor = rt.newWorker(record)
		w = w.successor
		rt.connectTo(w)
	case w == nil && len(rt.workers) >= maxWorkers:
		rt.ignored++
		return
	default:
		if w != nil {
			rt.drop(w)
		}
		w = rt.newWorker(record)
		rt.workers[w.ref.ID] = w
		rt.connectTo(w)
	}
	if !slices.Equal(w.record.GetAddresses(), record.GetAddresses()) {
		rt.out = append(rt.out, Connect{w.ref, record})
	}
	if w.listed != nil && serves(w.listed) && serves(record) && rt.now.Sub(w.leavesAt) < leavesDoubt {
		w.listed = record // it may be from before the worker said that it leaves
	} else {
		w.setRecord(w.mergeRecord(record))
		w.listed, w.drained = nil, w.drained && w.draining
	}
	rt.grouped = nil
	w.registered, w.missing, w.missingSince = true, 0, time.Time{}
}

// connectTo asks for a connection to a worker that is new.
func (rt *Router) connectTo(w *worker) {
	w.unlisted = true
	rt.unanswered[w.role]++
	rt.out = append(rt.out, Connect{w.ref, w.record})
}

// forgetSuccessor drops the successor of a worker, if it has one.
func (rt *Router) forgetSuccessor(w *worker) {
	if successor := w.successor; successor != nil {
		w.successor = nil
		rt.peerLoads.drop(successor)
		rt.unanswered[successor.record.GetRole()]--
		rt.out = append(rt.out, Forget{successor.ref})
	}
}

// mergeRecord is what a worker said of itself when it answered, with the state and the
// addresses that etcd lists. A block store's record is etcd's, since what it holds changes.
func (w *worker) mergeRecord(record *controlv1.WorkerRecord) *controlv1.WorkerRecord {
	if w.identifiedRecord == nil {
		return record
	}
	out := proto.CloneOf(w.identifiedRecord)
	out.State, out.Addresses = record.GetState(), record.GetAddresses()
	return out
}

// connected takes in that a worker answers.
func (rt *Router) connected(now time.Time, e Connected) {
	w := rt.worker(e.Worker)
	if w == nil {
		return
	}
	if holder := rt.workers[w.ref.ID]; holder != w {
		rt.drop(holder) // which gives its place to w
	}
	if !w.answered {
		w.answered = true
		rt.unanswered[w.role]--
		i, _ := rt.position(w.ref.ID)
		rt.order, rt.peerLoads.refs, rt.waking.known = slices.Insert(rt.order, i, w), nil, false
		if w.isStore() {
			rt.stores = append(rt.stores, w)
			slices.SortFunc(rt.stores, byID)
		}
	}
	w.connected, w.connectedAt, w.connection, w.connectError = true, now, e.Connection, ""
	if e.Record != nil && e.Record.GetRole() != controlv1.Role_ROLE_KVTRANSFER {
		w.identifiedRecord = e.Record
		w.setRecord(w.mergeRecord(w.record))
	}
	rt.pinsDue, rt.grouped = now, nil
	rt.list(now, w)
}

// miss notes which workers etcd does not list while it answers, and drops those of them
// that never answered.
func (rt *Router) miss(now time.Time, listed map[string]*controlv1.WorkerRecord) {
	for _, w := range slices.SortedFunc(maps.Values(rt.workers), byID) {
		record := listed[w.ref.ID]
		switch {
		case !rt.live:
			w.missing, w.missingSince = w.missed(now), time.Time{}
		case record != nil && (w.is(record) || w.successor != nil):
		case !w.answered:
			rt.drop(w)
		case w.missingSince.IsZero():
			w.registered, w.missingSince, rt.unregistered = false, now, true
		}
		if rt.live && record == nil {
			rt.forgetSuccessor(w)
		}
	}
}

// missed is how long etcd has answered without listing a worker.
func (w *worker) missed(now time.Time) time.Duration {
	if w.missingSince.IsZero() {
		return w.missing
	}
	return w.missing + now.Sub(w.missingSince)
}

// shown are the workers that operators see: all that have answered, and some of the
// others.
func (rt *Router) shown() []*worker {
	out := slices.Clone(rt.order)
	var unanswered []*worker
	for _, w := range rt.workers {
		if !w.answered {
			unanswered = append(unanswered, w)
		}
		if w.successor != nil {
			unanswered = append(unanswered, w.successor)
		}
	}
	slices.SortFunc(unanswered, byID)
	return append(out, unanswered[:min(len(unanswered), maxShownUnanswered)]...)
}

// UnansweredWorkers is how many workers etcd lists that have not answered yet, that do not
// answer any more without having said that they leave, or that are too many to ask.
func (rt *Router) UnansweredWorkers() int {
	n := rt.ignored
	for _, w := range rt.order {
		if w.registered && !w.connected && !w.draining {
			n++
		}
	}
	for _, count := range rt.unanswered {
		n += count
	}
	return n
}
