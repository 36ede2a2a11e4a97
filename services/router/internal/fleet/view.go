package fleet

import (
	"slices"
	"sort"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// view takes in what etcd lists.
func (f *Fleet) view(now time.Time, e ViewChanged) {
	listed := f.chosen(e.Workers)
	for _, record := range e.Workers {
		if record == nil || listed[record.GetId()] != record {
			continue
		}
		w := f.workers[record.GetId()]
		if w != nil && !w.is(record) {
			f.drop(w)
			w = nil
		}
		if w == nil {
			w = newWorker(record)
			w.unlisted = true
			f.add(w)
			f.out = append(f.out, Connect{w.ref, record})
		}
		w.record, w.registered, w.lostAt = record, true, time.Time{}
	}
	if e.Live {
		for _, w := range f.order {
			if listed[w.ref.ID] == nil && w.registered {
				w.registered, w.lostAt = false, now
			}
		}
	}
	f.expireWorkers(now)
}

// chosen is the records of workers and block stores, by id. Ids are unique; if
// two workers share one all the same, the one that is known already stays, or
// else the first, and that is said once for as long as it lasts.
func (f *Fleet) chosen(records []*controlv1.WorkerRecord) map[string]*controlv1.WorkerRecord {
	listed := make(map[string]*controlv1.WorkerRecord, len(records))
	doubled := make(map[string]bool)
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
		if w := f.workers[id]; w != nil && w.is(record) {
			listed[id] = record
		}
		if !doubled[id] && !f.doubled[id] {
			f.out = append(f.out, Doubled{ID: id, Roles: [2]controlv1.Role{before.GetRole(), record.GetRole()}})
		}
		doubled[id] = true
	}
	f.doubled = doubled
	return listed
}

// expireWorkers drops workers that etcd does not list and that are not
// connected, or were kept long enough, or have left: drained, with nothing of
// ours.
func (f *Fleet) expireWorkers(now time.Time) {
	for _, w := range slices.Clone(f.order) {
		left := w.record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING && len(w.own) == 0
		if !w.registered && (!w.connected || left || now.Sub(w.lostAt) >= f.config.WorkerKeep) {
			f.drop(w)
		}
	}
}

func (f *Fleet) add(w *worker) {
	f.workers[w.ref.ID] = w
	i, _ := f.position(w.ref.ID)
	f.order = slices.Insert(f.order, i, w)
	if w.record.GetRole() == controlv1.Role_ROLE_KVTRANSFER {
		f.stores = append(f.stores, w)
		slices.SortFunc(f.stores, func(a, b *worker) int { return strings.Compare(a.ref.ID, b.ref.ID) })
	}
}

func (f *Fleet) position(id string) (int, bool) {
	return slices.BinarySearchFunc(f.order, id, func(w *worker, id string) int { return strings.Compare(w.ref.ID, id) })
}

func (f *Fleet) drop(w *worker) {
	delete(f.workers, w.ref.ID)
	if i, ok := f.position(w.ref.ID); ok {
		f.order = slices.Delete(f.order, i, i+1)
	}
	f.stores = slices.DeleteFunc(f.stores, func(s *worker) bool { return s == w })
	f.index.Forget(w.ref.ID)
	f.forgetWorker(w.ref)
	f.out = append(f.out, Forget{w.ref})
}

// blocks takes in a KV event.
func (f *Fleet) blocks(now time.Time, event *controlv1.KvEvent) {
	origin := event.GetOrigin()
	w := f.worker(Ref{origin.GetId(), origin.GetEpoch()})
	if w == nil {
		return
	}
	if !f.index.Apply(w.ref.ID, w.ref.Epoch, origin.GetSequence(), hashes(event.GetStored()), hashes(event.GetRemoved())) {
		w.unlisted = true
		f.list(now, w)
	}
}

// list asks for a worker's prefix cache if it is wanted.
func (f *Fleet) list(now time.Time, w *worker) {
	if w.unlisted && w.connected && !w.listing && !now.Before(w.listNext) {
		w.listing = true
		f.out = append(f.out, ListBlocks{w.ref})
	}
}

// listRetry is how long after a ListBlocks that failed or did not suffice the
// next one is sent.
const listRetry = time.Second

// listed takes in the answer to ListBlocks. It says whether the worker turned out
// to be another one.
func (f *Fleet) listed(now time.Time, e BlocksListed) (lost bool) {
	w := f.worker(e.Worker)
	if w == nil {
		return false
	}
	w.listing = false
	switch {
	case e.Response == nil:
		w.listNext = now.Add(listRetry)
	case e.Response.GetEpoch() != w.ref.Epoch:
		f.disconnect(now, w)
		return true
	default:
		f.snapshot(now, w, e.Response)
	}
	return false
}

// snapshot takes in a worker's prefix cache.
func (f *Fleet) snapshot(now time.Time, w *worker, blocks *workerv1.ListBlocksResponse) {
	w.unlisted = !f.index.Snapshot(w.ref.ID, w.ref.Epoch, blocks.GetSequence(), hashes(blocks.GetBlockHashes()))
	if w.unlisted {
		w.listNext = now.Add(listRetry)
	}
}

// disconnect takes in that there is no connection to a worker any more.
func (f *Fleet) disconnect(now time.Time, w *worker) {
	w.connected, w.listing = false, false
	f.expireWorkers(now)
}

func hashes(words []uint64) []kvcache.Hash {
	out := make([]kvcache.Hash, len(words))
	for i, w := range words {
		out[i] = kvcache.Hash(w)
	}
	return out
}

// Workers is the fleet as operators see it, sorted by role and id.
func (f *Fleet) Workers(now time.Time) []View {
	views := make([]View, 0, len(f.workers))
	for _, w := range f.order {
		v := View{Record: w.record, Load: w.load, Connected: w.connected, Registered: w.registered, InFlight: len(w.own)}
		if w.load != nil {
			v.LoadAge = now.Sub(w.loadAt)
		}
		views = append(views, v)
	}
	sort.Slice(views, func(i, j int) bool {
		a, b := views[i].Record, views[j].Record
		if a.GetRole() != b.GetRole() {
			return a.GetRole() < b.GetRole()
		}
		return a.GetId() < b.GetId()
	})
	return views
}

// View is one worker as operators see it. Its messages are not to be changed.
type View struct {
	Record                *controlv1.WorkerRecord
	Load                  *controlv1.LoadReport
	LoadAge               time.Duration
	Connected, Registered bool
	InFlight              int
}
