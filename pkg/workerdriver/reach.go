package workerdriver

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
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
	set := metricset.ForWorker(registerer, workerID)
	flops := set.Counters("tandem_engine_flops_total", "Floating-point operations that the engine's steps needed, by phase.", "phase")
	readBytes := set.Counters("tandem_engine_read_bytes_total", "Bytes of weights and KV that the engine's steps had to read, by phase.", "phase")
	seconds := set.Counters("tandem_engine_busy_seconds_total", "Time that the engine worked on steps, by phase; a mixed step counts as prefill.", "phase")
	if limited, knows := engine.As[engine.Limited](e); knows {
		set.GaugeFunc("tandem_engine_limit_flops_per_second", "Floating-point operations per second that the device can do, as measured; 0 if unknown.", nil,
			func() float64 { return limited.Limits().FLOPsPerSecond })
		set.GaugeFunc("tandem_engine_limit_read_bytes_per_second", "Bytes per second that the device can read from memory, as measured; 0 if unknown.", nil,
			func() float64 { return limited.Limits().ReadBytesPerSecond })
	}
	if err := set.Err(); err != nil {
		return err
	}
	of := func(phase string) costCounters {
		return costCounters{flops.WithLabelValues(phase), readBytes.WithLabelValues(phase), seconds.WithLabelValues(phase)}
	}
	m.reach = &reach{engine.CostsOf(e), of("prefill"), of("decode")}
	return nil
}

// stepCost counts what a step needed.
func (m *Metrics) stepCost(batch engine.Batch, out *engine.Output) {
	if m == nil || m.reach == nil {
		return
	}
	work, compute := out.Work(batch), out.Compute
	prefill, decode := m.reach.costs.Step(work)
	m.reach.prefill.add(prefill)
	m.reach.decode.add(decode)
	if work.Prefill.Tokens > 0 {
		m.reach.prefill.seconds.Add(compute.Seconds())
	} else {
		m.reach.decode.seconds.Add(compute.Seconds())
	}
}
