package worker

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

// countReach registers the counters, and the device's limits where the engine
// knows them.
func (m *Metrics) countReach(registerer prometheus.Registerer, workerID string, e engine.Engine) error {
	labels := prometheus.Labels{"worker": workerID}
	flops := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_engine_flops_total", Help: "Floating-point operations that the engine's steps needed, by phase.", ConstLabels: labels,
	}, []string{"phase"})
	readBytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_engine_read_bytes_total", Help: "Bytes of weights and KV that the engine's steps had to read, by phase.", ConstLabels: labels,
	}, []string{"phase"})
	seconds := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_engine_busy_seconds_total", Help: "Time that the engine worked on steps, by phase; a mixed step counts as prefill.", ConstLabels: labels,
	}, []string{"phase"})
	collectors := []prometheus.Collector{flops, readBytes, seconds}
	if limited, knows := e.(engine.Limited); knows {
		for _, g := range []struct {
			name, help string
			value      func(latency.Limits) float64
		}{
			{"tandem_engine_limit_flops_per_second", "Floating-point operations a second that the device can do, measured; 0: not known.", func(l latency.Limits) float64 { return l.FLOPsPerSecond }},
			{"tandem_engine_limit_read_bytes_per_second", "Bytes a second that the device can read from memory, measured; 0: not known.", func(l latency.Limits) float64 { return l.ReadBytesPerSecond }},
		} {
			collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help, ConstLabels: labels},
				func() float64 { return g.value(limited.Limits()) }))
		}
	}
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	of := func(phase string) costCounters {
		return costCounters{flops.WithLabelValues(phase), readBytes.WithLabelValues(phase), seconds.WithLabelValues(phase)}
	}
	m.reach = &reach{engine.CostsOf(e), of("prefill"), of("decode")}
	return nil
}

// stepCost counts what a step needed.
func (m *Metrics) stepCost(batch engine.Batch, compute time.Duration) {
	if m == nil || m.reach == nil {
		return
	}
	work := batch.Work()
	prefill, decode := m.reach.costs.Step(work)
	m.reach.prefill.add(prefill)
	m.reach.decode.add(decode)
	if work.Prefill.Tokens > 0 {
		m.reach.prefill.seconds.Add(compute.Seconds())
	} else {
		m.reach.decode.seconds.Add(compute.Seconds())
	}
}
