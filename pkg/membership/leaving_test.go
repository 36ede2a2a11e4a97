package membership_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
)

func TestLeaving(t *testing.T) {
	const draining, serving = controlv1.WorkerState_WORKER_STATE_DRAINING, controlv1.WorkerState_WORKER_STATE_SERVING
	now := time.Unix(1, 0)
	var l membership.Leaving
	state := func(want membership.State, record controlv1.WorkerState, due bool) {
		t.Helper()
		if l.State() != want || l.WorkerState() != record || l.Due(now) != due {
			t.Errorf("state %v, of the record %v, due %v; want %v, %v, %v", l.State(), l.WorkerState(), l.Due(now), want, record, due)
		}
	}
	state(membership.Serving, serving, false)
	if was, left := l.Undo(); was || left {
		t.Error("undone without a drain")
	}
	if !l.Begin(now) || l.Begin(now.Add(time.Hour)) {
		t.Error("a drain begins once")
	}
	state(membership.Draining, draining, false)
	now = l.DepartAt().Add(-1)
	state(membership.Draining, draining, false)
	now = now.Add(1)
	state(membership.Draining, draining, true)
	l.Depart()
	state(membership.Stopped, draining, false)
	if was, left := l.Undo(); !was || !left {
		t.Error("it had drained and left")
	}
	state(membership.Serving, serving, false)
	if !l.Begin(now) {
		t.Error("it cannot drain again")
	}
	state(membership.Draining, draining, false)
	if was, left := l.Undo(); !was || left {
		t.Error("it had drained and not left")
	}
	state(membership.Serving, serving, false)
}
