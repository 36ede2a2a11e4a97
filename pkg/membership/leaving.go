package membership

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// departDelay is for how long at least the record says that the worker drains before it is
// removed: long enough that routers see it, who keep a worker that etcd merely lost.
const departDelay = time.Second

// Leaving is how a worker leaves the mesh and comes back: what its record says, and when it goes.
// It starts no goroutine and reads no clock, so that a Member drives it live and a simulation on
// virtual time. The zero value is a worker that serves. It is not safe for concurrent use.
type Leaving struct {
	began  time.Time // the drain
	drains bool
	left   bool
}

// Begin begins to drain, unless the worker does already. If it reports true, the record is to be
// updated.
func (l *Leaving) Begin(now time.Time) bool {
	if l.drains {
		return false
	}
	*l = Leaving{began: now, drains: true}
	return true
}

// Undo takes a drain back. If it reports true, there was one, and the record is to be updated, or
// written anew if the worker had left.
func (l *Leaving) Undo() (was, left bool) {
	was, left = l.drains, l.left
	*l = Leaving{}
	return was, left
}

// DepartAt is when the record of a worker that drains is to be removed if nothing is left of what
// the worker took, and else as soon as nothing is.
func (l *Leaving) DepartAt() time.Time { return l.began.Add(departDelay) }

// Due reports that the record is to be removed now, if nothing is left of what the worker took.
func (l *Leaving) Due(now time.Time) bool { return l.drains && !l.left && !now.Before(l.DepartAt()) }

// Depart is the removal of the record. A worker that ends need not wait for Due.
func (l *Leaving) Depart() { l.left = true }

// State is Serving, Draining or Stopped.
func (l *Leaving) State() State {
	switch {
	case l.left:
		return Stopped
	case l.drains:
		return Draining
	}
	return Serving
}

// WorkerState is the state for the record.
func (l *Leaving) WorkerState() controlv1.WorkerState {
	if l.drains {
		return controlv1.WorkerState_WORKER_STATE_DRAINING
	}
	return controlv1.WorkerState_WORKER_STATE_SERVING
}
