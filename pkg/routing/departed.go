package routing

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

const (
	// leftLimit bounds how many workers that have left are remembered.
	leftLimit = 256
	// leavesDoubt is how long a worker's own word that it takes nothing new counts
	// against a record that does not say so: by then it does, or that was taken back.
	leavesDoubt = 5 * time.Second
)

// leaves takes in that a worker says that it takes nothing new.
func (rt *Router) leaves(now time.Time, w *worker) {
	if w.listed == nil {
		w.listed = w.record
		record := proto.CloneOf(w.record) // the view shares it
		record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
		w.setRecord(record)
	}
	w.leavesAt = now
	rt.pinsDue, rt.grouped = now, nil
	rt.expireWorkers(now)
}

// stays takes back that a worker leaves.
func (rt *Router) stays(now time.Time, w *worker) {
	w.setRecord(w.mergeRecord(w.listed))
	w.listed, w.drained = nil, false
	rt.pinsDue, rt.grouped = now, nil
}

// staysAgain takes in that a worker reports its load. leavesDoubt after it said that it
// leaves, its record in etcd counts again: one that does leave says so again. It reports
// whether the worker takes requests by that.
func (rt *Router) staysAgain(now time.Time, w *worker) bool {
	if w.listed == nil || !w.registered || !rt.live || now.Sub(w.leavesAt) < leavesDoubt {
		return false
	}
	rt.stays(now, w)
	return serves(w.record)
}

func serves(record *controlv1.WorkerRecord) bool {
	return record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING
}

// remember keeps the record of a worker that has left, which may be asked back.
func (rt *Router) remember(record *controlv1.WorkerRecord) {
	rt.left = slices.DeleteFunc(rt.left, func(r *controlv1.WorkerRecord) bool { return r.GetId() == record.GetId() })
	rt.left = append(rt.left, record)
	if len(rt.left) > leftLimit {
		rt.left = slices.Delete(rt.left, 0, len(rt.left)-leftLimit)
	}
}

// Left is the record of a worker that drained and is not known any more; nil: there is
// none. It is not to be changed.
func (rt *Router) Left(id string) *controlv1.WorkerRecord {
	for _, record := range rt.left {
		if record.GetId() == id && rt.workers[id] == nil {
			return record
		}
	}
	return nil
}

// lastLeft is the worker of a role and a model that drained last and is not known any more;
// empty: there is none.
func (rt *Router) lastLeft(role controlv1.Role, model string) string {
	for _, record := range slices.Backward(rt.left) {
		if record.GetRole() == role && rt.model(model).servedBy(record) && rt.workers[record.GetId()] == nil {
			return record.GetId()
		}
	}
	return ""
}
