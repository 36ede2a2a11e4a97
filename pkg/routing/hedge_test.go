package routing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// newHedgeBench has idle workers, and has served so many requests.
func newHedgeBench(t *testing.T, share float64, served int) *bench {
	b := newBench(t, func(c *routing.Config) { c.HedgeShare, c.Router = share, "router-0" }, prefill("p1"), prefill("p2"), decode("d1"), decode("d2"))
	for range served {
		b.idle()
		r := b.request(dis, 100)
		b.arrive(r)
		b.do(routing.PromptDone{ID: r.ID})
		b.do(routing.Ended{ID: r.ID, Served: true})
	}
	b.idle()
	return b
}

func (b *bench) idle() {
	for _, id := range []string{"p1", "p2"} {
		b.do(load(id, controlv1.Role_ROLE_PREFILL, nil))
	}
	for _, id := range []string{"d1", "d2"} {
		b.do(load(id, controlv1.Role_ROLE_DECODE, nil))
	}
}

// hedge asks for a hedged attempt beside the one of a dispatch.
func (b *bench) hedge(r routing.Request, d routing.Dispatch) (routing.Dispatch, routing.Refusal) {
	late := d.Decode
	if d.Prefill.ID != "" {
		late = d.Prefill
	}
	r.ID, r.Attempt, r.Version = r.ID+"+hedge", 1, d.Version
	hedge, refusal, ok := answerTo(r.ID, b.do(routing.Hedge{Request: r, Late: late, After: d.HedgeAfter, Again: b.again}))
	if !ok {
		b.t.Fatal("no answer")
	}
	return hedge, refusal
}

// A request whose first token is late goes to another worker too, and the record says so.
func TestHedgeGoesElsewhere(t *testing.T) {
	b := newHedgeBench(t, 0.1, 60)
	r := b.request(dis, 100)
	d, _, _ := b.arrive(r)
	if d.HedgeAfter < 5*time.Millisecond || d.HedgeAfter > 50*time.Millisecond {
		t.Errorf("hedged after %v of a prediction of %v ms", d.HedgeAfter, d.Decision.GetTtftMs())
	}
	b.pass(d.HedgeAfter)
	hedge, refusal := b.hedge(r, d)
	if hedge.Prefill.ID == "" || hedge.Prefill == d.Prefill || hedge.HedgeAfter != 0 || hedge.Version != d.Version {
		t.Fatalf("%+v beside %+v: %+v", hedge, d, refusal)
	}
	if !hedge.Decision.GetHedge() || !strings.Contains(hedge.Decision.GetReason(), "no first token came from "+d.Prefill.ID) {
		t.Errorf("%v", hedge.Decision)
	}
	if b.f.Running() != 2 {
		t.Errorf("%d run", b.f.Running())
	}
	// The first one of the two that ends takes nothing from the other.
	b.do(routing.Ended{ID: r.ID, Lost: true})
	b.do(routing.PromptDone{ID: r.ID + "+hedge"})
	b.do(routing.Ended{ID: r.ID + "+hedge", Served: true, Tokens: 20})
	if b.f.Running() != 0 {
		t.Errorf("%d run at the end", b.f.Running())
	}
}

// There is none where nobody would begin it at once.
func TestHedgeTakesOnlyFreeRoom(t *testing.T) {
	for name, busy := range map[string]func(*bench){
		"prefill": func(b *bench) {
			for _, id := range []string{"p1", "p2"} {
				b.do(load(id, controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.WaitingTokens, r.WaitingSequences = 400, 1 }))
			}
		},
		"decode": func(b *bench) {
			for _, id := range []string{"d1", "d2"} {
				b.do(load(id, controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.RunningSequences = 2 }))
			}
		},
		"queue": func(b *bench) {
			for range 20 {
				b.do(routing.Arrived{Request: b.request(dis, 2000)})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHedgeBench(t, 0.1, 60)
			r := b.request(dis, 100)
			d, _, _ := b.arrive(r)
			busy(b)
			if hedge, refusal := b.hedge(r, d); refusal.Reason != routing.HedgeNoCapacity {
				t.Errorf("%+v, %+v", hedge, refusal)
			}
		})
	}
}

// Hedged attempts are a share of the requests at most, at any time.
func TestHedgesAreAShare(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		share := rapid.SampledFrom([]float64{0, 0.01, 0.02, 0.3, 1}).Draw(r, "share")
		b := newHedgeBench(t, share, 0)
		requests, hedges := 0, 0
		b.again = true
		for range rapid.IntRange(1, 300).Draw(r, "requests") {
			b.idle()
			q := b.request(dis, 100)
			d, _, _ := b.arrive(q)
			requests++
			if share == 0 && d.HedgeAfter != 0 {
				r.Fatal("hedged though there are no hedges")
			}
			if rapid.IntRange(0, 3).Draw(r, "late") == 0 {
				hedge, refusal := b.hedge(q, d)
				if refusal.Reason == "" {
					hedges++
					b.do(routing.Ended{ID: hedge.ID})
				} else if refusal.Reason != routing.HedgeBudget {
					r.Fatalf("%+v", refusal)
				}
			}
			if float64(hedges) > share*float64(requests) {
				r.Fatal(fmt.Sprintf("%d of %d", hedges, requests))
			}
			b.do(routing.Ended{ID: q.ID})
		}
	})
}
