package routing

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// view takes in what etcd lists.
func (rt *Router) view(now time.Time, e ViewChanged) {
	listed := rt.chosen(e.Workers)
	before := rt.ignored
	rt.live, rt.ignored = e.Live, 0
	rt.learnPeers(e.Workers)
	rt.learnRouters(e)
	for _, record := range e.Workers {
		if record == nil || listed[record.GetId()] != record {
			continue
		}
		rt.register(record)
	}
	if rt.ignored > 0 && before == 0 {
		rt.out = append(rt.out, TooManyWorkers{rt.ignored})
	}
	rt.miss(now, listed)
	rt.pinsDue = now
	rt.expireWorkers(now)
}

// chosen is the records of workers and block stores, by id. Ids are unique; if
// two workers share one all the same, the one that is known already stays, or
// else the first, and that is said once for as long as it lasts.
func (rt *Router) chosen(records []*controlv1.WorkerRecord) map[string]*controlv1.WorkerRecord {
	listed := make(map[string]*controlv1.WorkerRecord, len(records))
	duplicates := make(map[string]bool)
	for _, record := range records {
		if r := record.GetRole(); r != controlv1.Role_ROLE_PREFILL && r != controlv1.Role_ROLE_DECODE && r != controlv1.Role_ROLE_KVTRANSFER {
			continue
		}
		id := record.GetId()
		before := listed[id]
		if before == nil {
			listed[id] = record
			continue
		}
		if w := rt.workers[id]; w != nil && w.is(record) {
			listed[id] = record
		}
		if !duplicates[id] && !rt.duplicates[id] {
			rt.out = append(rt.out, DuplicateID{ID: id, Roles: [2]controlv1.Role{before.GetRole(), record.GetRole()}})
		}
		duplicates[id] = true
	}
	rt.duplicates = duplicates
	return listed
}

// expireWorkers drops workers that etcd does not list and that are not
// connected, or were kept long enough, or have left: drained, with nothing of
// ours.
func (rt *Router) expireWorkers(now time.Time) {
	if !rt.unregistered {
		return
	}
	rt.unregistered = false
	for _, w := range slices.Clone(rt.order) {
		drains := w.draining
		left := drains && len(w.own) == 0
		if !w.registered && (!w.connected || left || w.missed(now) >= rt.config.WorkerKeep) {
			rt.drop(w)
			if drains {
				rt.remember(w.record)
			}
			continue
		}
		rt.unregistered = rt.unregistered || !w.registered
	}
}

func (rt *Router) position(id string) (int, bool) {
	return slices.BinarySearchFunc(rt.order, id, func(w *worker, id string) int { return strings.Compare(w.ref.ID, id) })
}

// drop forgets a worker. If another incarnation has its place in etcd, it is that one's.
func (rt *Router) drop(w *worker) {
	delete(rt.workers, w.ref.ID)
	rt.peerLoads.drop(w)
	rt.grouped = nil
	if w.successor != nil {
		rt.workers[w.ref.ID] = w.successor
		w.successor.unlisted = true // the index forgets both
	}
	if !w.answered {
		rt.unanswered[w.role]--
	} else if i, ok := rt.position(w.ref.ID); ok {
		rt.order, rt.waking.known = slices.Delete(rt.order, i, i+1), false
	}
	rt.stores = slices.DeleteFunc(rt.stores, func(s *worker) bool { return s == w })
	rt.setListing(w, false)
	rt.index.Forget(w.ref.ID)
	rt.forgetExpected(w)
	rt.forgetWorker(w.ref)
	rt.forgetSender(w)
	rt.pinsDue = rt.now
	rt.out = append(rt.out, Forget{w.ref})
}

// disconnect takes in that there is no connection to a worker any more.
func (rt *Router) disconnect(now time.Time, w *worker) {
	w.connected = false
	rt.setListing(w, false)
	rt.pinsDue, rt.grouped = now, nil
	if w.successor != nil {
		rt.drop(w) // the place is the other's
		return
	}
	rt.expireWorkers(now)
}

// Workers is all workers as operators see them, sorted by role and id. The records and load reports
// are not to be changed.
func (rt *Router) Workers(now time.Time) []*controlv1.WorkerView {
	views := make([]*controlv1.WorkerView, 0, len(rt.workers))
	for _, w := range rt.shown() {
		v := &controlv1.WorkerView{Record: w.record, Load: w.load, Connected: w.connected, Registered: w.registered, InFlight: uint32(len(w.own)), Excluded: rt.notServed(w)}
		if w.drained && w.draining {
			v.Record = proto.CloneOf(w.record)
			v.Record.State = controlv1.WorkerState_WORKER_STATE_DRAINED
		}
		switch {
		case !w.connected:
			v.Excluded = cmp.Or(w.connectError, v.Excluded)
		case v.Excluded == "" && w.avoided(now):
			v.Excluded = w.why
		case v.Excluded == "":
			v.Excluded = w.slowWhy()
		}
		if w.load != nil {
			v.LoadAge = durationpb.New(now.Sub(w.loadAt))
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b *controlv1.WorkerView) int {
		return cmp.Or(cmp.Compare(a.GetRecord().GetRole(), b.GetRecord().GetRole()), cmp.Compare(a.GetRecord().GetId(), b.GetRecord().GetId()))
	})
	return views
}
