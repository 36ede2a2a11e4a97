package integration_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// Somebody who reaches NATS says of every worker that it is full, each 50 ms and after
// each report of its own, with numbers that these had, that the next ones have, or that
// none has for long. Requests go on, and their tokens are the same.
func TestForgedReportsStopNobody(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	for name, test := range map[string]struct {
		number   func(last, forged uint64) uint64
		distrust bool // of those that may be the worker's own
	}{
		"from 1":       {func(_, forged uint64) uint64 { return forged }, true},
		"the next one": {func(last, _ uint64) uint64 { return last + 1 }, true},
		"far ahead":    {func(_, forged uint64) uint64 { return 1<<40 + forged }, false},
	} {
		t.Run(name, func(t *testing.T) { testForgedReports(t, test.number, test.distrust) })
	}
}

func testForgedReports(t *testing.T, number func(last, forged uint64) uint64, distrust bool) {
	server := startNATS(t, 0)
	m := clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Signals.URLs = []string{server.URL()}
		o.PrefillWorkers, o.DecodeWorkers = 2, 2
	})
	want := generate(t, m.Client, request(longPrompt(1), 10, 0.8, disaggregated))
	workers, err := m.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	if err != nil || len(workers) != 4 {
		t.Fatalf("%d workers, %v", len(workers), err)
	}
	stop := forge(t, server, workers, number)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		r, err := m.Generate(ctx, request(longPrompt(1), 10, 0.8, disaggregated))
		cancel()
		if err != nil || !slices.Equal(r.Tokens, want.Tokens) {
			t.Fatalf("request %d: %v, %v, want %v", i, r.Tokens, err, want.Tokens)
		}
	}
	stop()
	if n := metric(t, m, "tandem_router_reports_distrusted_total"); distrust && n == 0 {
		t.Error("no worker's reports were distrusted")
	}
}

// forge publishes that the workers are full, each 50 ms and after each report of their
// own, until stop is called. It returns when it has done so for a while.
func forge(t *testing.T, server *embedded.NATS, workers []*controlv1.WorkerView, number func(last, forged uint64) uint64) (stop func()) {
	t.Helper()
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	const mark = 1 << 20 // sequences that run by forged reports
	var mu sync.Mutex
	last := map[string]uint64{} // numbers, those forged included
	forged := uint64(0)
	publish := func(r *controlv1.WorkerRecord) {
		mu.Lock()
		defer mu.Unlock()
		forged++
		payload, err := proto.Marshal(&controlv1.LoadReport{
			Origin: &controlv1.Origin{Id: r.GetId(), Epoch: r.GetEpoch(), Sequence: number(last[r.GetId()], forged)}, Role: r.GetRole(),
			RunningSequences: mark, BlocksTotal: r.GetCapacity().GetBlocks(),
		})
		if err == nil {
			err = conn.Publish(signals.LoadSubject(r.GetRole(), r.GetId()), payload)
		}
		if err != nil {
			t.Error(err)
		}
	}
	listener := connectNATS(t, server.URL())
	unsubscribe, err := listener.Subscribe(signals.Handlers{Load: func(report *controlv1.LoadReport) {
		mu.Lock()
		last[report.GetOrigin().GetId()] = report.GetOrigin().GetSequence()
		mu.Unlock()
		for _, w := range workers {
			if report.GetRunningSequences() != mark && report.GetOrigin().GetId() == w.GetRecord().GetId() {
				publish(w.GetRecord())
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	const atFirst = 10
	begun, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ; n++ {
			for _, w := range workers {
				publish(w.GetRecord())
			}
			if n == atFirst {
				close(begun)
			}
			select {
			case <-tick.C:
			case <-done:
				close(ended)
				return
			}
		}
	}()
	<-begun
	return func() {
		close(done)
		<-ended
		unsubscribe()
		conn.Close()
	}
}

// metric is the sum of a metric over its labels.
func metric(t *testing.T, m *clustertest.InProcess, name string) (sum float64) {
	t.Helper()
	families, err := m.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, sample := range f.GetMetric() {
				sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
	}
	return sum
}
