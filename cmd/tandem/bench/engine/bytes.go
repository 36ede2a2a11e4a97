package engine

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// decodeBytes is what steps of batch sequences read, all together: for each the weights
// once, as they are packed, and the KV.
func decodeBytes(spec model.Spec, p Plan) float64 {
	config := p.Config()
	costs := engine.NewCosts(spec).WithWeights(p.DType.BytesPerWeight()).WithKV(float64(cpu.SliceBytes(spec, config)) / float64(config.BlockTokens))
	var sum float64
	for step := range p.DecodeSteps {
		var work latency.StepWork
		for range p.Batch {
			work.Add(p.ContextTokens+step, 1, true)
		}
		prefill, decode := costs.Step(work)
		sum += prefill.ReadBytes + decode.ReadBytes
	}
	return sum
}
