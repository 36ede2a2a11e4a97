package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// A worker that has measured nothing is given work, or it never would measure.
func TestUnmeasuredWorkersAreUsed(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), prefill("p2"), decode("d1"), decode("d2"))
	b.do(load("p1", controlv1.Role_ROLE_PREFILL, nil))
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
	used := make(map[string]int)
	for range 40 {
		r := b.request(dis, 100)
		d, refusal, ok := b.arrive(r)
		if !ok || d.Decision == nil {
			t.Fatalf("not dispatched: %v", refusal)
		}
		used[d.Prefill.ID]++
		used[d.Decode.ID]++
		b.do(routing.Ended{ID: r.ID})
	}
	for _, id := range []string{"p1", "p2", "d1", "d2"} {
		if used[id] < 5 {
			t.Errorf("of 40 requests %s got %d: %v", id, used[id], used)
		}
	}
}

// A worker that drained and removed its record is forgotten, though its process
// and its connection live on; one that etcd merely lost is kept.
func TestDrainedWorkerIsForgotten(t *testing.T) {
	drained := decode("d1")
	drained.State = controlv1.WorkerState_WORKER_STATE_DRAINING
	b := newBench(t, nil, drained, decode("d2"), decode("d3"))
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{decode("d3")}, Live: true})
	var forgotten []string
	for _, action := range b.last {
		if f, is := action.(routing.Forget); is {
			forgotten = append(forgotten, f.Worker.ID)
		}
	}
	if len(forgotten) != 1 || forgotten[0] != "d1" {
		t.Errorf("forgot %v, want d1 only", forgotten)
	}
}

// A worker whose steps were slow once, because it stalled, gets work again after a
// while, and a newcomer is not taken to be as slow.
func TestStalledWorkerGetsWorkAgain(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"), decode("d3"))
	// What a stall of 8 s leaves of steps of some tokens: all base, no slope.
	b.do(load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.StepTime = &controlv1.StepTimeModel{BaseMs: 13, PerTokenMs: 0, Samples: 600}
	}))
	b.do(load("d2", controlv1.Role_ROLE_DECODE, nil))
	used := make(map[string]int)
	ask := func() {
		r := b.request(agg, 10)
		if d, _, ok := b.arrive(r); ok {
			used[d.Decode.ID]++
		}
		b.do(routing.Ended{ID: r.ID})
	}
	for range 20 {
		ask()
	}
	if used["d3"] == 0 || used["d1"] > 1 {
		t.Errorf("at first: %v", used)
	}
	b.pass(11 * time.Second)
	for range 20 {
		ask()
	}
	if used["d1"] == 0 {
		t.Errorf("after a while: %v", used)
	}
}

// A worker that refused because it leaves gets nothing more, whatever etcd says.
func TestWorkerThatLeavesIsLeftAlone(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	r := b.request(agg, 10)
	d, _, _ := b.arrive(r)
	b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{{Worker: d.Decode, Gone: true, Leaves: true}}})
	for range 10 {
		next := b.request(agg, 10)
		if again, _, ok := b.arrive(next); !ok || again.Decode == d.Decode {
			t.Fatalf("%s got another request: %+v", d.Decode.ID, again)
		}
		b.do(routing.Ended{ID: next.ID})
	}
}
