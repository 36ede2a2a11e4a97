package fleet_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

func TestWorkersComeAndGo(t *testing.T) {
	d1 := decode("d1")
	ref := fleet.Ref{ID: "d1", Epoch: 1}
	serves := func(b *bench) bool {
		r := b.request(agg, 10)
		d, _, ok := b.arrive(r)
		b.do(fleet.Cancelled{ID: r.ID})
		b.do(fleet.Ended{ID: r.ID})
		return ok && d.Decode.ID != ""
	}
	t.Run("etcd away", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(fleet.ViewChanged{Live: false})
		b.pass(time.Hour)
		if !serves(b) {
			t.Error("an outage of etcd lost a worker")
		}
	})
	t.Run("lease lost, connection works", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(fleet.ViewChanged{Live: true})
		b.pass(30 * time.Second)
		if !serves(b) {
			t.Error("not kept")
		}
		if actions := b.pass(31 * time.Second); !slices.Contains(actions, fleet.Action(fleet.Forget{Worker: ref})) {
			t.Errorf("kept for ever: %v", actions)
		}
	})
	t.Run("lease lost, connection broken", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(fleet.ViewChanged{Live: true})
		if actions := b.do(fleet.Disconnected{Worker: ref}); !slices.Contains(actions, fleet.Action(fleet.Forget{Worker: ref})) {
			t.Errorf("kept: %v", actions)
		}
	})
	t.Run("broken connection", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(fleet.Disconnected{Worker: ref})
		if serves(b) {
			t.Error("chosen without a connection")
		}
		b.do(fleet.Connected{Worker: ref})
		if !serves(b) {
			t.Error("not chosen again")
		}
	})
	t.Run("new epoch", func(t *testing.T) {
		b := newBench(t, nil, d1)
		again := proto.CloneOf(d1)
		again.Epoch = 2
		b.do(fleet.ViewChanged{Workers: []*controlv1.WorkerRecord{again}, Live: true})
		b.do(fleet.Connected{Worker: ref}) // late, of the old one
		if serves(b) {
			t.Error("the new one is not connected yet")
		}
		b.do(fleet.Connected{Worker: fleet.Ref{ID: "d1", Epoch: 2}})
		if !serves(b) {
			t.Error("not chosen")
		}
	})
	t.Run("draining", func(t *testing.T) {
		b := newBench(t, nil, d1)
		leaving := proto.CloneOf(d1)
		leaving.State = controlv1.WorkerState_WORKER_STATE_DRAINING
		b.do(fleet.ViewChanged{Workers: []*controlv1.WorkerRecord{leaving}, Live: true})
		if serves(b) {
			t.Error("chosen")
		}
	})
}
