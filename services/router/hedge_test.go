package router_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// A request whose first token is late has it from another worker, with the same tokens, and
// nothing of the other attempt is left. The record tells.
func TestHedge(t *testing.T) {
	for _, test := range []struct {
		name  string
		mode  inferencev1.Mode
		stage workertest.Stage
		role  controlv1.Role
	}{
		{"before reserving", dis, workertest.Reserve, controlv1.Role_ROLE_DECODE},
		{"before starting", dis, workertest.Start, controlv1.Role_ROLE_PREFILL},
		{"in the prompt", dis, workertest.First, controlv1.Role_ROLE_PREFILL},
		{"before admission, aggregated", agg, workertest.Admit, controlv1.Role_ROLE_DECODE},
		{"in the prompt, aggregated", agg, workertest.Token, controlv1.Role_ROLE_DECODE},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, func(c *router.Config) { c.Routing.HedgeShare = 1 }, func(t *testing.T, m *mesh) {
				var armed atomic.Bool
				workers := m.start(func(ctx context.Context, w *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, n int) error {
					if stage == test.stage && w.Record.GetRole() == test.role && n == 0 && armed.CompareAndSwap(true, false) {
						return hangs(ctx, w)
					}
					return nil
				}, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
				reportSteps(t, m)
				var want []uint32
				for range 20 {
					r := m.generate(t.Context(), ask(test.mode, 100))
					if r.err != nil || r.finished.GetRoute().GetHedged() {
						t.Fatalf("route %v, error %v", r.finished.GetRoute(), r.err)
					}
					want = r.tokens
				}
				armed.Store(true)
				began := time.Now()
				q := ask(test.mode, 100)
				q.Slo = &inferencev1.Slo{Ttft: durationpb.New(10 * time.Second)}
				r := m.generate(t.Context(), q)
				if took := time.Since(began); r.err != nil || !slices.Equal(r.tokens, want) || took > time.Second {
					t.Fatalf("took %v, %d tokens, error %v", took, len(r.tokens), r.err)
				}
				route := r.finished.GetRoute()
				if !route.GetHedged() || route.GetRetries() != 0 || !strings.Contains(route.GetReason(), "no first token came from") {
					t.Errorf("%v", route)
				}
				explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
				if err != nil {
					t.Fatal(err)
				}
				tries := explained.GetDecisions()
				if len(tries) != 2 || tries[0].GetHedge() || !tries[0].GetLost() || !tries[1].GetHedge() || tries[1].GetLost() {
					t.Errorf("%v", tries)
				}
				for _, w := range workers {
					for _, task := range w.Tasks() {
						if attempt := task.GetEnvelope().GetAttempt(); task.GetEnvelope().GetSlo() != nil && (task.GetFirstTokenNs() > 0) != (attempt == 0) {
							t.Errorf("attempt %d is due in %v", attempt, time.Duration(task.GetFirstTokenNs()))
						}
					}
				}
				m.quiet()
			})
		})
	}
}
