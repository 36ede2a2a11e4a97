package routing_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

func TestWorkersComeAndGo(t *testing.T) {
	d1 := decode("d1")
	ref := routing.Ref{ID: "d1", Epoch: 1}
	serves := func(b *bench) bool {
		r := b.request(agg, 10)
		d, _, ok := b.arrive(r)
		b.do(routing.Cancelled{ID: r.ID})
		b.do(routing.Ended{ID: r.ID})
		return ok && d.Decode.ID != ""
	}
	t.Run("etcd away", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(routing.ViewChanged{Live: false})
		b.pass(time.Hour)
		if !serves(b) {
			t.Error("an outage of etcd lost a worker")
		}
	})
	t.Run("lease lost, connection works", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(routing.ViewChanged{Live: true})
		b.pass(30 * time.Second)
		if !serves(b) {
			t.Error("not kept")
		}
		if actions := b.pass(31 * time.Second); !slices.Contains(actions, routing.Action(routing.Forget{Worker: ref})) {
			t.Errorf("kept for ever: %v", actions)
		}
	})
	t.Run("lease lost, connection broken", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(routing.ViewChanged{Live: true})
		if actions := b.do(routing.Disconnected{Worker: ref}); !slices.Contains(actions, routing.Action(routing.Forget{Worker: ref})) {
			t.Errorf("kept: %v", actions)
		}
	})
	t.Run("broken connection", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(routing.Disconnected{Worker: ref})
		if serves(b) {
			t.Error("chosen without a connection")
		}
		b.do(routing.Connected{Worker: ref})
		if !serves(b) {
			t.Error("not chosen again")
		}
	})
	t.Run("new epoch", func(t *testing.T) {
		b := newBench(t, nil, d1)
		again := proto.CloneOf(d1)
		again.Epoch = 2
		b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{again}, Live: true})
		if !serves(b) {
			t.Error("the old one answers, and the new one has not answered yet")
		}
		b.do(routing.Disconnected{Worker: ref})
		b.do(routing.Connected{Worker: ref}) // late, of the old one
		if serves(b) {
			t.Error("the new one is not connected yet")
		}
		b.do(routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 2}})
		if !serves(b) {
			t.Error("not chosen")
		}
	})
	t.Run("a record that nobody answers for, in the place of a worker that does", func(t *testing.T) {
		b := newBench(t, nil, d1)
		bogus := proto.CloneOf(d1)
		bogus.Epoch = 2
		b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{bogus}, Live: true})
		b.do(routing.ConnectFailed{Worker: routing.Ref{ID: "d1", Epoch: 2}, Why: "somebody else answers"})
		if !serves(b) {
			t.Error("the worker lost its place to nobody")
		}
		if actions := b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{d1}, Live: true}); !slices.Contains(actions, routing.Action(routing.Forget{Worker: routing.Ref{ID: "d1", Epoch: 2}})) {
			t.Errorf("the other is still asked: %v", actions)
		}
		if !serves(b) || b.f.UnansweredWorkers() != 0 {
			t.Errorf("%d unmet workers", b.f.UnansweredWorkers())
		}
	})
	t.Run("both gone", func(t *testing.T) {
		b := newBench(t, nil, d1)
		bogus := proto.CloneOf(d1)
		bogus.Epoch = 2
		b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{bogus}, Live: true})
		b.do(routing.ViewChanged{Live: true})
		if actions := b.do(routing.Disconnected{Worker: ref}); !slices.Contains(actions, routing.Action(routing.Forget{Worker: ref})) || len(b.f.Workers(b.now)) != 0 || b.f.UnansweredWorkers() != 0 {
			t.Errorf("%v are left after %v", b.f.Workers(b.now), actions)
		}
	})
	t.Run("an edited record changes nothing but the state", func(t *testing.T) {
		b := newBench(t, nil, d1)
		b.do(routing.Disconnected{Worker: ref})
		b.do(routing.Connected{Worker: ref, Record: proto.CloneOf(d1)})
		edited := proto.CloneOf(d1)
		edited.ModelDigest, edited.Capacity = "other", &controlv1.Capacity{}
		b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{edited}, Live: true})
		if !serves(b) {
			t.Error("etcd was believed more than the worker")
		}
	})
	t.Run("absent from etcd only while it answers", func(t *testing.T) {
		b := newBench(t, nil, d1)
		for range 5 {
			b.do(routing.ViewChanged{Live: true})
			b.pass(10 * time.Second)
			b.do(routing.ViewChanged{Live: false})
			b.pass(time.Hour)
		}
		if !serves(b) {
			t.Error("forgotten after 50 s without a record, of a minute that is allowed")
		}
		b.do(routing.ViewChanged{Live: true})
		if actions := b.pass(11 * time.Second); !slices.Contains(actions, routing.Action(routing.Forget{Worker: ref})) {
			t.Errorf("kept for ever: %v", actions)
		}
	})
	t.Run("draining", func(t *testing.T) {
		b := newBench(t, nil, d1)
		leaving := proto.CloneOf(d1)
		leaving.State = controlv1.WorkerState_WORKER_STATE_DRAINING
		b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{leaving}, Live: true})
		if serves(b) {
			t.Error("chosen")
		}
	})
}

// An event that the worker never sent costs two snapshots, a while apart.
func TestForgedEvent(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	ref := routing.Ref{ID: "d1", Epoch: 1}
	answer := func() []routing.Action {
		return b.do(routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1, Sequence: 3, BlockHashes: []uint64{1}}})
	}
	answer()
	b.do(routing.BlocksChanged{Event: &controlv1.KvEvent{Origin: &controlv1.Origin{Id: "d1", Epoch: 1, Sequence: 1 << 60}}})
	if actions := b.pass(200 * time.Millisecond); len(actions) != 1 {
		t.Fatalf("a gap gives %v", actions)
	}
	if actions := answer(); len(actions) != 0 {
		t.Errorf("asked again at once: %v", actions)
	}
	asked := func(actions []routing.Action) (n int) {
		for _, action := range actions {
			if _, is := action.(routing.ListBlocks); is {
				n++
			}
		}
		return n
	}
	if n := asked(b.pass(time.Minute)); n != 1 {
		t.Errorf("asked %d times", n)
	}
	answer()
	if n := asked(b.pass(20 * time.Second)); n != 0 {
		t.Errorf("asked %d times although the last answer sufficed", n)
	}
}

// Two workers of one id do not take turns: one is used, and it is said once.
func TestOneIDTwice(t *testing.T) {
	p, d := prefill("w"), decode("w")
	d.Epoch = 2
	b := newBench(t, nil)
	both := func(records ...*controlv1.WorkerRecord) []routing.Action {
		return b.do(routing.ViewChanged{Workers: records, Live: true})
	}
	actions := both(d, p)
	said := routing.DuplicateID{ID: "w", Roles: [2]controlv1.Role{d.GetRole(), p.GetRole()}}
	if len(actions) != 2 || !slices.Contains(actions, routing.Action(routing.Connect{Worker: routing.Ref{ID: "w", Epoch: 2}, Record: d})) || !slices.Contains(actions, routing.Action(said)) {
		t.Fatalf("first %v", actions)
	}
	for range 3 {
		if actions := both(p, d); len(actions) != 0 {
			t.Fatalf("then %v", actions)
		}
	}
	actions = both(p)
	if want := []routing.Action{routing.Forget{Worker: routing.Ref{ID: "w", Epoch: 2}}, routing.Connect{Worker: routing.Ref{ID: "w", Epoch: 1}, Record: p}}; !slices.Equal(actions, want) {
		t.Fatalf("alone %v", actions)
	}
	if actions := both(d, p); !slices.Equal(actions, []routing.Action{said}) {
		t.Fatalf("again %v", actions)
	}
}

// A worker in whose place another one answers is not chosen, and forgotten once
// etcd does not list it.
func TestReplacedWorker(t *testing.T) {
	ref := routing.Ref{ID: "d1", Epoch: 1}
	for _, test := range []struct {
		name string
		tell func(*bench)
	}{
		{"in its prefix cache", func(b *bench) {
			b.do(routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 2}})
		}},
		{"in a refusal", func(b *bench) {
			r := b.request(agg, 10)
			b.arrive(r)
			b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: ref, Gone: true, Replaced: true}}})
		}},
	} {
		for _, registered := range []bool{true, false} {
			t.Run(test.name, func(t *testing.T) {
				b := newBench(t, nil, decode("d1"))
				if !registered {
					b.do(routing.ViewChanged{Live: true})
				}
				test.tell(b)
				if forgotten := slices.Contains(b.last, routing.Action(routing.Forget{Worker: ref})); forgotten == registered {
					t.Errorf("registered %v, forgotten %v", registered, forgotten)
				}
				if d, _, _ := b.arrive(b.request(agg, 10)); d.Decode.ID != "" {
					t.Error("chosen")
				}
			})
		}
	}
}

// What a connection learnt of the prefix cache when it was made is not asked for
// again.
func TestConnectedWithBlocks(t *testing.T) {
	b := newBench(t, nil)
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{decode("d1")}, Live: true})
	ref := routing.Ref{ID: "d1", Epoch: 1}
	b.do(routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1}})
	if actions := b.do(routing.Connected{Worker: ref}); len(actions) != 0 {
		t.Errorf("asks for %v", actions)
	}
	b.do(routing.Disconnected{Worker: ref})
}

// A worker that has fallen silent is taken only if nothing else is there; when
// all are silent, reports do not come through, and none is worse than another.
func TestSilentWorker(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	steps := uint64(100)
	report := func(id string) {
		b.do(load(id, controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.StepTime.Samples = steps }))
	}
	served := func() map[string]int {
		seen := make(map[string]int)
		for range 20 {
			r := b.request(agg, 10)
			d, _, _ := b.arrive(r)
			seen[d.Decode.ID]++
			b.do(routing.Ended{ID: r.ID})
		}
		return seen
	}
	report("d1")
	report("d2")
	b.pass(4 * time.Second)
	if seen := served(); seen["d1"] == 0 || seen["d2"] == 0 {
		t.Errorf("all silent: %v", seen)
	}
	report("d1")
	report("d2")
	r := b.request(agg, 10)
	d, _, _ := b.arrive(r)
	b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: d.Decode, Gone: true, Silent: true}}})
	b.now = b.now.Add(time.Second)
	if seen := served(); seen[d.Decode.ID] != 0 {
		t.Errorf("%s hung: %v", d.Decode.ID, seen)
	}
	report("d1")
	report("d2")
	if seen := served(); seen[d.Decode.ID] != 0 {
		t.Errorf("%s reports and computes nothing: %v", d.Decode.ID, seen)
	}
	steps++
	report("d1")
	report("d2")
	if seen := served(); seen["d1"] == 0 || seen["d2"] == 0 {
		t.Errorf("it computes again: %v", seen)
	}
	b.pass(4 * time.Second)
	report("d2")
	if seen := served(); seen["d2"] != 20 {
		t.Errorf("d1 silent: %v", seen)
	}
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d2", Epoch: 1}})
	if seen := served(); seen["d1"] != 20 {
		t.Errorf("only d1 is left: %v", seen)
	}
}
