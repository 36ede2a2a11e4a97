package workerdriver_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// TestReachIsCounted: a prompt of 20 tokens in chunks of 16 and then two more
// tokens cost what they cost, and took their time.
func TestReachIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := latency.Model{BaseMs: 10}.Profile()
		step.Limits = &latency.Limits{FLOPsPerSecond: 1e12, ReadBytesPerSecond: 4e10, Valid: true}
		e, err := simulated.New(simulated.Config{Spec: spec(), Blocks: 40, BlockTokens: 4, MaxBatchTokens: 64, MaxSequences: 8, Profile: step})
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		cfg := memberConfig(controlv1.Role_ROLE_DECODE, e)
		cfg.Registerer = registry
		m, err := workerdriver.NewMember(cfg)
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		go func() { defer close(stop); m.Driver().Run(t.Context()) }()
		t.Cleanup(func() { <-stop })
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: make([]int32, 20), MaxTokens: 3})
		var r result
		r.read(t, s, false)
		synctest.Wait()

		var first, last, tokens latency.StepWork
		first.Add(0, 16, false)
		last.Add(16, 4, true)
		costs := engine.NewCosts(spec(), engine.BytesPerWeight{}, 0)
		a, _ := costs.Step(first)
		b, _ := costs.Step(last)
		var decode engine.Cost
		for _, at := range []int{20, 21} {
			tokens = latency.StepWork{}
			tokens.Add(at, 1, true)
			_, cost := costs.Step(tokens)
			decode.FLOPs += cost.FLOPs
			decode.ReadBytes += cost.ReadBytes
		}
		want := map[string]float64{
			"tandem_engine_flops_total/prefill":         a.FLOPs + b.FLOPs,
			"tandem_engine_read_bytes_total/prefill":    a.ReadBytes + b.ReadBytes,
			"tandem_engine_flops_total/decode":          decode.FLOPs,
			"tandem_engine_read_bytes_total/decode":     decode.ReadBytes,
			"tandem_engine_limit_flops_per_second":      1e12,
			"tandem_engine_limit_read_bytes_per_second": 4e10,
			"tandem_engine_busy_seconds_total/prefill":  0.02,
			"tandem_engine_busy_seconds_total/decode":   0.02,
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := family.GetName()
				for _, label := range metric.GetLabel() {
					if label.GetName() == "phase" {
						name += "/" + label.GetValue()
					}
				}
				expected, known := want[name]
				if !known {
					continue
				}
				delete(want, name)
				if got := metric.GetCounter().GetValue() + metric.GetGauge().GetValue(); got != expected {
					t.Errorf("%s is %v, want %v", name, got, expected)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("missing: %v", want)
		}
	})
}
