package routing_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// A request that is to be disaggregated goes to a pair that has room and a path
// whenever there is one, waits while there may soon be one, and is refused at once if
// every path is broken.
func TestAPairIsFoundIfThereIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type end struct {
			ref    routing.Ref
			layout uint64
			full   bool
		}
		var ends [2][]end // prefill and decode workers
		var records []*controlv1.WorkerRecord
		for side, name := range [2]string{"p", "d"} {
			for i := range rapid.IntRange(1, 4).Draw(t, name) {
				r := prefill(fmt.Sprint(name, i))
				if side == 1 {
					r = decode(fmt.Sprint(name, i))
				}
				r.LayoutDigest = rapid.SampledFrom([]uint64{7, 7, 8}).Draw(t, "layout")
				records = append(records, r)
				ends[side] = append(ends[side], end{routing.Ref{ID: r.GetId(), Epoch: 1}, r.GetLayoutDigest(), rapid.IntRange(0, 3).Draw(t, "full") == 0})
			}
		}
		b := newBench(nil, nil, records...)
		var failed [2]map[[2]routing.Ref]bool
		for round := range failed {
			failed[round] = map[[2]routing.Ref]bool{}
			b.pass(150 * time.Millisecond)
			d, _, _ := b.arrive(b.request(agg, 1))
			e := routing.Ended{ID: d.ID}
			for _, from := range ends[0] {
				for _, to := range ends[1] {
					if rapid.IntRange(0, 3).Draw(t, "fails") > 0 {
						failed[round][[2]routing.Ref{from.ref, to.ref}] = true
						e.Failures = append(e.Failures, routing.Failure{Worker: from.ref, Unreached: to.ref, Why: nobodyThere})
					}
				}
			}
			b.do(e)
		}
		for side, role := range [2]controlv1.Role{controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE} {
			for _, w := range ends[side] {
				b.do(load(w.ref.ID, role, func(r *controlv1.LoadReport) {
					if w.full {
						r.BlocksFree = 0
					}
				}))
			}
		}
		open, soon, broken := map[[2]routing.Ref]bool{}, false, false
		for _, to := range ends[1] {
			for _, from := range ends[0] {
				switch pair := [2]routing.Ref{from.ref, to.ref}; {
				case to.full:
					soon = true
				case from.layout != to.layout:
				case failed[0][pair] && failed[1][pair]:
					broken = true
				case failed[1][pair] || from.full:
					soon = true
				default:
					open[pair] = true
				}
			}
		}
		r := b.request(dis, 100)
		for _, w := range append(ends[0], ends[1]...) {
			if rapid.IntRange(0, 2).Draw(t, "second choice") == 0 {
				r.Failures = append(r.Failures, routing.Failure{Worker: w.ref})
			}
		}
		d, refusal, answered := b.arrive(r)
		switch {
		case len(open) > 0:
			if !open[[2]routing.Ref{d.Prefill, d.Decode}] {
				t.Fatalf("of %v: %v, %+v", open, d, refusal)
			}
		case soon || !broken:
			if answered {
				t.Fatalf("does not wait: %v, %+v", d, refusal)
			}
		case refusal.Reason != api.ReasonKVUnreachable:
			t.Fatalf("not refused: %v, %+v", d, refusal)
		}
	})
}

// With every path broken, what a decision takes grows with the workers and not with
// the paths between them.
func TestBrokenPathsCostLittle(t *testing.T) {
	const workers = 32
	f, now := routerWithoutPaths(workers)
	for _, forced := range []bool{false, true} {
		if n := testing.AllocsPerRun(10, func() { decideWithoutPath(f, now, forced) }); n > 10*2*workers {
			t.Errorf("forced %v: %v allocations", forced, n)
		}
	}
}
