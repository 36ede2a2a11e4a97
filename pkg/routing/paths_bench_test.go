package routing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// routerWithoutPaths is n prefill and n decode workers, with KV from none to any: each path
// failed once, a moment ago.
func routerWithoutPaths(n int) (*routing.Router, time.Time) {
	c := config()
	c.QueueLimit = 1000
	f, now := routing.New(c, rand.New(rand.NewPCG(1, 2))), time.Unix(1000, 0)
	var records []*controlv1.WorkerRecord
	for i := range n {
		records = append(records, prefill(fmt.Sprint("p", i)), decode(fmt.Sprint("d", i)))
	}
	f.Handle(now, routing.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		f.Handle(now, routing.Connected{Worker: routing.Ref{ID: r.GetId(), Epoch: 1}})
	}
	for {
		d, _, found := answerTo("r", f.Handle(now, routing.Arrived{Request: requestWithoutPath(now, false)}))
		f.Handle(now, routing.Ended{ID: "r", Failures: []routing.Failure{{Worker: d.Prefill, Unreached: d.Decode, Why: nobodyThere}}})
		if !found || d.Prefill.ID == "" {
			return f, now
		}
	}
}

func requestWithoutPath(now time.Time, forced bool) routing.Request {
	r := routing.Request{ID: "r", Tenant: "t", Model: "fable", Mode: auto, Arrived: now, Tokens: 100, MaxNew: 32}
	if forced {
		r.Mode = dis
	}
	return r
}

// decideWithoutPath is a request that finds no path and goes again.
func decideWithoutPath(f *routing.Router, now time.Time, forced bool) {
	f.Handle(now, routing.Arrived{Request: requestWithoutPath(now, forced)})
	if forced { // it waits
		f.Handle(now, routing.Cancelled{ID: "r"})
	} else {
		f.Handle(now, routing.Ended{ID: "r"})
	}
}

// What a decision costs while KV gets nowhere, and the time of the next tick while a
// request waits for that.
func BenchmarkDecideWithEveryPathBroken(b *testing.B) {
	for _, n := range []int{16, 64} {
		for _, forced := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d+%d/forced=%v", n, n, forced), func(b *testing.B) {
				f, now := routerWithoutPaths(n)
				b.ReportAllocs()
				for b.Loop() {
					decideWithoutPath(f, now, forced)
				}
			})
		}
		b.Run(fmt.Sprintf("workers=%d+%d/next", n, n), func(b *testing.B) {
			f, now := routerWithoutPaths(n)
			f.Handle(now, routing.Arrived{Request: requestWithoutPath(now, true)})
			b.ReportAllocs()
			for b.Loop() {
				if next, ok := f.Next(); !ok || next.Sub(now) != 100*time.Millisecond {
					b.Fatal(next)
				}
			}
		})
	}
}
