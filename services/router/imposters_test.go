package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Records that lead to nobody, to a gRPC server that is no worker, or to another worker,
// get no request, spend no attempt, and are shown with what is wrong.
func TestRecordsOfNobody(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		real := m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		stranger := rpc.NewServer(rpc.ServerConfig{Name: "stranger"})
		listener := m.net.Listen("stranger:1")
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = stranger.Serve(listener) // until it is stopped
		}()
		defer func() {
			_ = stranger.Stop(context.Background())
			<-served
		}()
		records := []*controlv1.WorkerRecord{real[0].Record, real[1].Record}
		wrong := map[string]string{}
		for i := range 300 {
			fake := decodeRecord(fmt.Sprintf("bogus-%03d", i))
			if i%2 == 0 {
				fake.Role = prefillRecord("").GetRole()
			}
			switch i % 3 {
			case 0:
				fake.Addresses, wrong[fake.GetId()] = []string{"stranger:1"}, "another process answers at its address: not a worker"
			case 1:
				fake.Addresses, wrong[fake.GetId()] = []string{"d1:1"}, `another worker answers at its address: "d1"`
			case 2:
				wrong[fake.GetId()] = "connect to " + fake.GetAddresses()[0]
			}
			records = append(records, fake)
		}
		m.members.set(true, records...)
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 10 {
			r := m.generate(t.Context(), ask(dis, 100))
			if r.err != nil || r.finished.GetRoute().GetRetries() != 0 {
				t.Fatalf("route %v, error %v", r.finished.GetRoute(), r.err)
			}
			explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
			if err != nil || len(explained.GetDecisions()) != 1 || len(explained.GetDecisions()[0].GetCandidates()) != 2 {
				t.Fatalf("looked at others than the two workers: %v, %v", explained, err)
			}
		}
		response, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, w := range response.GetWorkers() {
			if want := wrong[w.GetRecord().GetId()]; want != "" {
				seen++
				if w.GetConnected() || !strings.Contains(w.GetExcluded(), want) {
					t.Errorf("%s is shown as %q, want %q", w.GetRecord().GetId(), w.GetExcluded(), want)
				}
			}
		}
		if seen < 200 {
			t.Errorf("%d of 300 are shown", seen)
		}
		if lines := strings.Count(m.log.String(), "worker is in etcd but not connected"); lines == 0 || lines > 40 {
			t.Errorf("%d lines were logged", lines)
		}
	})
}

// A worker that lost its connection and is back goes on with its requests, however
// often, although nobody else is there.
func TestConnectionsThatBreak(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		want := m.generate(t.Context(), ask(dis, 100))
		for _, mode := range []struct {
			address string
			cuts    int
		}{{"d1:1", 1}, {"d1:1", 5}, {"p1:1", 3}} {
			done := make(chan result)
			go func() { done <- m.generate(t.Context(), ask(dis, 100)) }()
			for range mode.cuts {
				time.Sleep(4 * time.Millisecond)
				m.net.Cut(mode.address)
				time.Sleep(100 * time.Millisecond)
			}
			r := <-done
			if r.err != nil || r.text != want.text {
				t.Errorf("%s cut %d times: %q, want %q, error %v", mode.address, mode.cuts, r.text, want.text, r.err)
			}
		}
	})
}
