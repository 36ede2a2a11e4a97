package engine

import (
	"context"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/enginebatches"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// PrefillFLOPs are those of a prompt in chunks.
func PrefillFLOPs(spec model.Spec, prompt, chunk int) (counted, computed float64) {
	return enginebatches.PrefillFLOPs(spec, enginebatches.Chunks(make([]int32, prompt), nil, chunk, true))
}

// DecodeBytes are those of all steps of a plan.
func DecodeBytes(spec model.Spec, p Plan) float64 {
	config := p.Config()
	costs := engine.NewCosts(spec, p.DType.BytesPerWeight(), float64(cpu.SliceBytes(spec, config))/float64(config.BlockTokens))
	return enginebatches.DecodeBytes(costs, p.Batch, p.ContextTokens, p.DecodeSteps) * float64(p.DecodeSteps)
}

// Prepare computes the contexts that decode begins with, and gives their block tables.
func Prepare(ctx context.Context, e engine.Engine, p Plan) ([][]kvcache.BlockID, error) {
	r := newRun(e, p)
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	var tables [][]kvcache.BlockID
	first, each := blocksFor(p.PromptTokens), blocksFor(p.ContextTokens+p.DecodeSteps)
	for i := range p.Batch {
		tables = append(tables, kvcache.BlockRange(first+i*each, each))
	}
	return tables, nil
}

// Sum makes a result of one prompt and one round of decode for each of measured but the
// last. Each step is a window of its own; reads are what reading reached around the
// windows, of each round one more than it has steps.
func Sum(r *Result, prefill []time.Duration, steps [][]time.Duration, reads [][]float64, measured []latency.Limits) {
	var rounds []round
	for i := range prefill {
		now := round{limits: measured[i], prefill: prefill[i], steps: steps[i], allocs: uint64(10 * (i + 1)), allocd: 40}
		for s, took := range steps[i] {
			now.windows = append(now.windows, window{1, took, reads[i][s], reads[i][s+1]})
		}
		rounds = append(rounds, now)
	}
	r.sum(rounds, measured[len(prefill)])
}
