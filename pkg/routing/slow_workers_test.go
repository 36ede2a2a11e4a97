package routing_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// slowBench has several equal prefill workers, some of which take so many times as long as they
// report.
type slowBench struct {
	*bench
	factor map[string]float64
	sent   map[string]int
}

func newSlowBench(t *testing.T) *slowBench {
	b := &slowBench{
		bench:  newBench(t, nil, prefill("p1"), prefill("p2"), prefill("p3"), decode("d1")),
		factor: make(map[string]float64), sent: make(map[string]int),
	}
	b.report()
	return b
}

func (b *slowBench) report() {
	for _, id := range []string{"p1", "p2", "p3"} {
		b.do(load(id, controlv1.Role_ROLE_PREFILL, nil))
	}
	b.do(load("d1", controlv1.Role_ROLE_DECODE, nil))
}

// serve serves one request after another, and counts where they go.
func (b *slowBench) serve(requests int) {
	clear(b.sent)
	for range requests {
		r := b.request(dis, 100)
		d, refusal, _ := b.arrive(r)
		if d.Prefill.ID == "" {
			b.t.Fatalf("%+v", refusal)
		}
		b.sent[d.Prefill.ID]++
		plain := 11 * time.Millisecond
		if f := b.factor[d.Prefill.ID]; f > 0 {
			plain = time.Duration(f * float64(plain))
		}
		b.pass(plain)
		b.do(routing.PromptDone{ID: r.ID})
		b.do(routing.Ended{ID: r.ID, Served: true})
		b.report()
	}
}

func (b *slowBench) slowness(worker string) float64 {
	at := slices.IndexFunc(b.f.Predictions(), func(p routing.Predictions) bool { return p.Worker == worker })
	return b.f.Predictions()[at].SlowFirst
}

// A worker that is slower than it reports gets hardly anything but trials, is shown with the
// reason, and comes back when its trials go well.
func TestSlowWorkerIsTriedNowAndThen(t *testing.T) {
	b := newSlowBench(t)
	b.serve(60)
	if b.sent["p1"] < 5 || b.slowness("p1") != 1 {
		t.Fatalf("before: %v, slow by %v", b.sent, b.slowness("p1"))
	}
	b.factor["p1"] = 4
	b.serve(60)
	if f := b.slowness("p1"); f < 2 || f > 6 {
		t.Fatalf("slow by %v, and not by 4", f)
	}
	if !slices.ContainsFunc(b.f.Workers(b.now), func(v *controlv1.WorkerView) bool {
		return v.GetRecord().GetId() == "p1" && strings.Contains(v.GetExcluded(), "slower than it reports")
	}) {
		t.Error("operators are not shown why")
	}
	b.serve(2000) // 22 s
	if n := b.sent["p1"]; n < 1 || n > 6 {
		t.Errorf("%d of 2000 requests went to the slow one", n)
	}
	b.factor["p1"] = 1
	b.serve(6000) // 66 s
	b.serve(60)
	if b.sent["p1"] < 5 || b.slowness("p1") != 1 {
		t.Errorf("well again: %v, slow by %v", b.sent, b.slowness("p1"))
	}
}

// What makes all workers slower makes none of them slow.
func TestAllSlowerIsNotSlow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newSlowBench(t)
		all := rapid.Float64Range(0.2, 8).Draw(r, "factor")
		b.factor["p1"], b.factor["p2"], b.factor["p3"] = all, all, all
		b.serve(200)
		b.serve(60)
		for _, id := range []string{"p1", "p2", "p3"} {
			if b.slowness(id) != 1 || b.sent[id] < 5 {
				r.Fatalf("%s is slow by %v and got %d of 60", id, b.slowness(id), b.sent[id])
			}
		}
	})
}

// A worker's tokens tell, too.
func TestSlowDecodeWorkerIsFound(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"), decode("d3"))
	sent := make(map[string]int)
	serve := func(requests int) {
		clear(sent)
		for range requests {
			for _, id := range []string{"d1", "d2", "d3"} {
				b.do(load(id, controlv1.Role_ROLE_DECODE, nil))
			}
			r := b.request(agg, 10)
			d, refusal, _ := b.arrive(r)
			if d.Decode.ID == "" {
				t.Fatalf("%+v", refusal)
			}
			sent[d.Decode.ID]++
			b.pass(30 * time.Millisecond)
			b.do(routing.PromptDone{ID: r.ID})
			gap := 2 * time.Millisecond
			if d.Decode.ID == "d2" {
				gap *= 4
			}
			var gaps routing.Gaps
			for range 32 {
				gaps.Add(gap)
			}
			b.pass(32 * gap)
			b.do(routing.TokensReceived{ID: r.ID, Gaps: gaps})
			b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 33})
		}
	}
	serve(40)
	serve(300) // 30 s
	if sent["d2"] > 6 {
		t.Errorf("%d of 300 requests went to the slow one: %v", sent["d2"], sent)
	}
}
