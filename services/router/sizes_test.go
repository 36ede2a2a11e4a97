package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Operators, metrics, scalers and other routers are told how many workers each pool should have, and
// the others what requests ask of this router.
func TestDesiredSizes(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		for range 10 {
			if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil {
				t.Fatal(r.err)
			}
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		list, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{Role: controlv1.Role_ROLE_DECODE})
		if err != nil || len(list.GetPools()) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		p := list.GetPools()[0]
		if p.GetPool() != controlv1.Role_ROLE_DECODE || p.GetModel() != "fable" || p.GetWorkers() != 1 || p.GetDesired() != 1 || p.GetReason() == "" {
			t.Errorf("%v", p)
		}
		if q := list.GetQueues(); len(q) != 1 || q[0].GetModel() != "fable" || q[0].GetDemand().GetRequestsPerSecond() <= 0 {
			t.Errorf("it tells operators of %v", q)
		}
		m.queue.mu.Lock()
		last := m.queue.reports[len(m.queue.reports)-1]
		m.queue.mu.Unlock()
		if d := last.GetDemand(); d.GetRequestsPerSecond() <= 0 || d.GetContextTokens() != 4 || d.GetOutputTokens() <= 1 || d.GetTtftMs() <= 0 {
			t.Errorf("it tells others %v", d)
		}
		if pools := last.GetPools(); len(pools) != 2 || pools[1].GetDesired() != p.GetDesired() || pools[0].GetWorkers() != 0 {
			t.Errorf("it tells others %v", pools)
		}
		if got := m.sample("tandem_router_desired_workers", "model", "fable").GetGauge().GetValue(); got != float64(p.GetDesired()) { // of decode, the first by name
			t.Errorf("the metric is %v", got)
		}
	})
}
