package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

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

// A router that has not heard yet which others there are does not take itself for the only one.
func TestLimitsBeforeTheFirstView(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		d := m.net.Start(decodeRecord("d1"), nil)
		m.workers = append(m.workers, d)
		_, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{RequestsPerMinute: 60})
		defer end()
		codesOf := make(chan codes.Code, 10)
		for range cap(codesOf) {
			go func() {
				_, err := inference.Tokenize(ctx, &inferencev1.TokenizeRequest{Text: "a"})
				codesOf <- status.Code(err)
			}()
		}
		synctest.Wait()
		m.members.set(true, d.Record, routerRecord("router-2", "router:3"), routerRecord("router-1", "router:1"))
		synctest.Wait()
		m.others.tenants(&controlv1.TenantReport{
			Origin: &controlv1.Origin{Id: "router-1", Epoch: 1, Sequence: 1}, Whole: true,
			Tenants: []*controlv1.TenantUse{{Tenant: "acme", Requests: 59}},
		})
		admitted := 0
		for range cap(codesOf) {
			if <-codesOf == codes.OK {
				admitted++
			}
		}
		if admitted > 1 {
			t.Errorf("%d requests were admitted where one was left", admitted)
		}
		m.quiet()
	})
}
