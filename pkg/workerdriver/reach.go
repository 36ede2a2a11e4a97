package workerdriver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// reach counts what the steps of an engine needed of its device: divided by the
// time they took, and by the limits, it is what the engine reaches.
type reach struct {
	costs           engine.Costs
	prefill, decode costCounters
}

type costCounters struct{ flops, readBytes, seconds prometheus.Counter }

func (c costCounters) add(cost engine.Cost) {
	c.flops.Add(cost.FLOPs)
	c.readBytes.Add(cost.ReadBytes)
}

// stepCost counts what a step needed.
func (m *Metrics) stepCost(work latency.StepWork, compute time.Duration) {
	if m.reach == nil {
		return
	}
	prefill, decode := m.reach.costs.Step(work)
	m.reach.prefill.add(prefill)
	m.reach.decode.add(decode)
	if work.Prefill.Tokens > 0 {
		m.reach.prefill.seconds.Add(compute.Seconds())
	} else {
		m.reach.decode.seconds.Add(compute.Seconds())
	}
}
