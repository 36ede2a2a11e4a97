package router_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// astray is what a prefill worker says of a decode worker whose KV address leads
// nowhere.
func astray(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
	if stage != workertest.Start {
		return nil
	}
	return rpc.Error(codes.Unavailable, api.ReasonTransferUnreachable, "cannot start a transfer to the decode worker: nobody there", 0)
}

// value is what a counter or gauge without labels says.
func (m *mesh) value(name string) float64 {
	m.t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue() + family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	m.t.Fatalf("no metric is called %s", name)
	return 0
}

// In mode auto a request whose KV has no way is served by one worker, soon and with
// the same tokens; those that follow do not try the pair at all.
func TestNoWayForKV(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		prefill := m.start(astray, prefillRecord("p1"))[0]
		m.start(nil, decodeRecord("d1"))
		for i := range 3 {
			began := time.Now()
			r := m.generate(t.Context(), ask(auto, 100))
			if r.err != nil || r.text != story {
				t.Fatalf("text %q, error %v", r.text, r.err)
			}
			route := r.finished.GetRoute()
			if route.GetMode() != agg || route.GetDecode() != "d1" || !strings.Contains(route.GetReason(), "p1 to d1") || !strings.Contains(route.GetReason(), "nobody there") {
				t.Errorf("route %v", route)
			}
			if retries := route.GetRetries(); (i == 0) != (retries == 1) || route.GetTransport() != "" {
				t.Errorf("request %d: route %v", i, route)
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("request %d took %v", i, took)
			}
		}
		if n := len(prefill.Tasks()); n != 1 {
			t.Errorf("the prefill worker was asked %d times", n)
		}
		if a, b, c := m.value("tandem_router_kv_unreached_total"), m.value("tandem_router_kv_paths_broken"), m.value("tandem_router_fallbacks_total"); a != 1 || b != 1 || c != 3 {
			t.Errorf("%v unreached, %v paths broken, %v fallbacks", a, b, c)
		}
		if n := m.sample("tandem_router_failed_tries_total", "code", "UNAVAILABLE").GetCounter().GetValue(); n != 1 {
			t.Errorf("%v failed tries", n)
		}
		m.quiet() // for longer than the pair is left alone
		if r := m.generate(t.Context(), ask(auto, 100)); r.err != nil || r.finished.GetRoute().GetMode() != agg {
			t.Errorf("%v, %v", r.err, r.finished)
		}
		if n := len(prefill.Tasks()); n != 2 {
			t.Errorf("the pair was tried %d times", n)
		}
	})
}

// A request that is to be disaggregated takes another pair, or is told at once what
// to look at.
func TestNoWayForForcedKV(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(astray, prefillRecord("p1"))
		m.start(nil, decodeRecord("d1"))
		for range 2 {
			began := time.Now()
			r := m.generate(t.Context(), ask(dis, 100))
			if status.Code(r.err) != codes.Unavailable || rpc.Reason(r.err) != "KV_UNREACHABLE" || !strings.Contains(r.err.Error(), "from p1 to d1") || !strings.Contains(r.err.Error(), "--kv-advertise") {
				t.Errorf("error %v, reason %q", r.err, rpc.Reason(r.err))
			}
			if after, ok := rpc.RetryAfter(r.err); !ok || after < time.Second {
				t.Errorf("retry after %v", after)
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("told after %v", took)
			}
		}
		m.start(nil, prefillRecord("p2"))
		for range 2 {
			r := m.generate(t.Context(), ask(dis, 100))
			if r.err != nil || r.text != story || r.finished.GetRoute().GetPrefill() != "p2" {
				t.Errorf("text %q, error %v, route %v", r.text, r.err, r.finished.GetRoute())
			}
		}
		m.quiet()
	})
}

// However many pairs break, the log says so now and then, and how often it did not.
func TestNoWayIsSaidNowAndThen(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(astray, prefillRecord("p1"), prefillRecord("p2"), prefillRecord("p3"))
		m.start(nil, decodeRecord("d1"))
		said := func() (lines []string) {
			synctest.Wait() // nobody logs meanwhile
			for line := range strings.Lines(m.log.String()) {
				if strings.Contains(line, "kv cannot be sent from") {
					lines = append(lines, line)
				}
			}
			return lines
		}
		for range 6 { // 3 tries each, of 3 pairs that have to fail twice
			_ = m.generate(t.Context(), ask(dis, 100))
		}
		if lines := said(); len(lines) != 1 || !strings.Contains(lines[0], "worker=p") || !strings.Contains(lines[0], "decode_worker=d1") || strings.Contains(lines[0], "unsaid=") {
			t.Errorf("said %q", lines)
		}
		time.Sleep(15 * time.Second)
		_ = m.generate(t.Context(), ask(dis, 100))
		if lines := said(); len(lines) != 2 || !strings.Contains(lines[1], "unsaid=") {
			t.Errorf("said %q", lines)
		}
		m.quiet()
	})
}

// What the KV went over is in the route and in the record.
func TestTransport(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		for mode, want := range map[inferencev1.Mode]string{dis: "unix", agg: ""} {
			r := m.generate(t.Context(), ask(mode, 100))
			if r.err != nil || r.finished.GetRoute().GetTransport() != want {
				t.Errorf("%v: %v, route %v", mode, r.err, r.finished.GetRoute())
			}
			e, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
			if err != nil || len(e.GetDecisions()) != 1 || e.GetDecisions()[0].GetTransport() != want {
				t.Errorf("%v: %v, record %v", mode, err, e)
			}
		}
	})
}
