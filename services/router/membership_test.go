package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
)

// A view of before the start is served by, and said to be old.
func TestOldViewIsServedAndSaid(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		list := func() *controlv1.ListWorkersResponse {
			t.Helper()
			response, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return response
		}
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		if got := list(); got.GetOld() || got.GetAge() != nil || m.value("tandem_membership_live") != 1 || m.value("tandem_membership_view_age_seconds") != 0 {
			t.Errorf("with etcd: old %v, age %v", got.GetOld(), got.GetAge())
		}
		seen := time.Now().Add(-time.Hour)
		m.members.setView(membership.View{AsOf: seen, Source: membership.SourcePeer, Workers: []*controlv1.WorkerRecord{decodeRecord("d1"), prefillRecord("p1")}})
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := list(); !got.GetOld() || got.GetSource() != "peer" || got.GetAge().AsDuration() != time.Hour+time.Minute || len(got.GetWorkers()) != 2 {
			t.Errorf("of an old view: %v, %q, %v, %d workers", got.GetOld(), got.GetSource(), got.GetAge().AsDuration(), len(got.GetWorkers()))
		}
		if live, age := m.value("tandem_membership_live"), m.value("tandem_membership_view_age_seconds"); live != 0 || age != 3660 {
			t.Errorf("in metrics: live %v, %v s old", live, age)
		}
		if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story {
			t.Errorf("%q, %v", r.text, r.err)
		}
		m.members.setView(membership.View{})
		synctest.Wait()
		if got := list(); !got.GetOld() || got.GetAge() != nil {
			t.Errorf("before etcd ever answered: %v, %v", got.GetOld(), got.GetAge())
		}
	})
}
