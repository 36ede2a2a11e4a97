package integration_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// The engine of one decode worker stops in the middle of its work, while its
// connection, its pings and its load reports go on. Nothing but its own steps says how
// long is too long here: the flags allow ten minutes. Every stream is answered by the
// other one, all the while.
func TestHungEngine(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	const hung, never = "decode-2", 10 * time.Minute
	asks := simulatedAsks(t)
	var hangs atomic.Bool
	goOn := make(chan struct{})
	m := clustertest.Start(t, func(o *mesh.UpOptions) {
		slowly(o)
		o.Engine.Simulated.Hold = func(_ context.Context, id string) error {
			if id == hung && hangs.Load() {
				<-goOn
			}
			return nil
		}
		o.StopTimeout = time.Minute // what it has begun ends when it goes on
		o.Router.Routing.WorkerSilence, o.Router.Routing.PromptSilence, o.Router.Routing.MaxQueueWait = never, never, never
	})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	load := clustertest.StartLoad(t, m.Client, streams, asks)
	load.AwaitServed(t, 20*streams) // so that the router knows how long steps take
	hangs.Store(true)
	clustertest.Await(t, func() string {
		views, err := m.Workers(decodeRole)
		if err != nil {
			return err.Error()
		}
		for _, v := range views {
			if v.GetRecord().GetId() == hung && v.GetExcluded() != "" {
				return ""
			}
		}
		return "the router suspects nobody"
	})
	load.AwaitEach(t) // those that it had went on elsewhere
	load.AwaitServed(t, 10*streams)
	if running := stepRunning(t, m.Metrics, hung); running == 0 {
		t.Error("no step hangs: the test has shown nothing")
	}
	release()
	load.Stop(t)
}

// stepRunning is for how many seconds the engine of a worker has been working on its
// step.
func stepRunning(t *testing.T, metrics prometheus.Gatherer, worker string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() == "tandem_worker_step_running_seconds" && metric.GetLabel()[0].GetValue() == worker {
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric of the steps of %s", worker)
	return 0
}
