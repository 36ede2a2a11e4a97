package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// connected is the workers of the router's view, by id, and whether the router
// is connected to them.
func (m *mesh) connected() map[string]bool {
	m.t.Helper()
	response, err := m.control.ListWorkers(m.t.Context(), &controlv1.ListWorkersRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, w := range response.GetWorkers() {
		out[w.GetRecord().GetId()] = w.GetConnected()
	}
	return out
}

// A process at a dead worker's address is not taken for that worker.
func TestSuccessorAtTheSameAddress(t *testing.T) {
	for _, test := range []struct {
		name, id string
		epoch    uint64
	}{{"another id", "d2", 2}, {"another incarnation", "d1", 2}} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				old := decodeRecord("d1")
				old.Epoch = 1
				died := m.start(nil, old)[0]
				died.Kill()
				next := decodeRecord(test.id)
				next.Epoch, next.Addresses = test.epoch, old.GetAddresses()
				w := m.net.Start(next, nil)
				m.workers = append(m.workers, w)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if seen := m.connected(); seen["d1"] {
					t.Error("the dead worker is connected")
				}
				// etcd lists the new one, the old one's lease has not ended.
				records := []*controlv1.WorkerRecord{next}
				if test.id != "d1" {
					records = append(records, old)
				}
				m.members.set(true, records...)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for range 5 {
					if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.finished.GetRoute().GetDecode() != test.id || r.finished.GetRoute().GetRetries() != 0 {
						t.Errorf("route %v, error %v", r.finished.GetRoute(), r.err)
					}
				}
				m.members.set(true, next)
				synctest.Wait()
				if seen := m.connected(); len(seen) != 1 || !seen[test.id] {
					t.Errorf("at the end: %v", seen)
				}
			})
		})
	}
}

// A worker that says that it is another one is not asked again.
func TestWrongEpoch(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(failAt("d1", workertest.Reserve, 0, refuses(codes.FailedPrecondition, api.ReasonWrongEpoch)), decodeRecord("d1"), decodeRecord("d2"))
		r := m.generate(t.Context(), ask(agg, 4))
		if r.err != nil || r.finished.GetRoute().GetDecode() != "d2" {
			t.Fatalf("route %v, error %v", r.finished.GetRoute(), r.err)
		}
		synctest.Wait()
		if seen := m.connected(); seen["d1"] || !seen["d2"] {
			t.Errorf("connected: %v", seen)
		}
	})
}

// Calls name the incarnation that they are for.
func TestCallsNameTheEpoch(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		p, d := prefillRecord("p1"), decodeRecord("d1")
		p.Epoch, d.Epoch = 1<<63+5, 1<<62+3
		m.start(nil, p, d) // they refuse another
		for _, mode := range []inferencev1.Mode{agg, dis} {
			if r := m.generate(t.Context(), ask(mode, 4)); r.err != nil {
				t.Errorf("%v: %v", mode, r.err)
			}
		}
	})
}
