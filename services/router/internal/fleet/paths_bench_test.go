package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// severedFleet is n prefill and n decode workers, with KV from none to any: each path
// failed once, a moment ago.
func severedFleet(n int) (*fleet.Fleet, time.Time) {
	c := config()
	c.QueueLimit = 1000
	f, now := fleet.New(c, rand.New(rand.NewPCG(1, 2))), time.Unix(1000, 0)
	var records []*controlv1.WorkerRecord
	for i := range n {
		records = append(records, prefill(fmt.Sprint("p", i)), decode(fmt.Sprint("d", i)))
	}
	f.Handle(now, fleet.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		f.Handle(now, fleet.Connected{Worker: fleet.Ref{ID: r.GetId(), Epoch: 1}})
	}
	for {
		d, _, found := answerTo("r", f.Handle(now, fleet.Arrived{Request: severedRequest(now, false)}))
		f.Handle(now, fleet.Ended{ID: "r", Failures: []fleet.Failure{{Worker: d.Prefill, Unreached: d.Decode, Why: nobodyThere}}})
		if !found || d.Prefill.ID == "" {
			return f, now
		}
	}
}

func severedRequest(now time.Time, forced bool) fleet.Request {
	r := fleet.Request{ID: "r", Tenant: "t", ModelDigest: "m", Mode: auto, Arrived: now, Tokens: 100, MaxNew: 32}
	if forced {
		r.Mode = dis
	}
	return r
}

// severedDecision is a request that finds no path and goes again.
func severedDecision(f *fleet.Fleet, now time.Time, forced bool) {
	f.Handle(now, fleet.Arrived{Request: severedRequest(now, forced)})
	if forced { // it waits
		f.Handle(now, fleet.Cancelled{ID: "r"})
	} else {
		f.Handle(now, fleet.Ended{ID: "r"})
	}
}

// What a decision costs while KV gets nowhere, and the time of the next tick while a
// request waits for that.
func BenchmarkDecideWithEveryPathBroken(b *testing.B) {
	for _, n := range []int{16, 64} {
		for _, forced := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d+%d/forced=%v", n, n, forced), func(b *testing.B) {
				f, now := severedFleet(n)
				b.ReportAllocs()
				for b.Loop() {
					severedDecision(f, now, forced)
				}
			})
		}
		b.Run(fmt.Sprintf("workers=%d+%d/next", n, n), func(b *testing.B) {
			f, now := severedFleet(n)
			f.Handle(now, fleet.Arrived{Request: severedRequest(now, true)})
			b.ReportAllocs()
			for b.Loop() {
				if next, ok := f.Next(); !ok || next.Sub(now) != 100*time.Millisecond {
					b.Fatal(next)
				}
			}
		})
	}
}
