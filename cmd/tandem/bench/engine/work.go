package engine

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// greedy takes the likeliest token.
var greedy = engine.Sample{}

// table is n blocks from first on.
func table(first, n int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, n)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(first + i)
	}
	return blocks
}

// promptOf makes up n tokens.
func promptOf(n, vocabulary int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*7919 + 11) % vocabulary)
	}
	return tokens
}

// chunks are the steps of a prompt, of at most size tokens each. The last draws a token
// if it should.
func chunks(tokens []int32, blocks []kvcache.BlockID, size int, draw bool) []engine.Batch {
	var steps []engine.Batch
	for at := 0; at < len(tokens); at += size {
		s := engine.Sequence{Tokens: tokens[at:min(at+size, len(tokens))], Start: at, Blocks: blocks}
		if draw && at+size >= len(tokens) {
			s.Sample = &greedy
		}
		steps = append(steps, engine.Batch{Sequences: []engine.Sequence{s}})
	}
	return steps
}

// prefillFLOPs is what a prompt costs: counted, as if every layer computed all of it,
// and computed, without what the engine leaves out of the last layer. There only the
// row that a token is drawn from goes through attention and what follows.
func prefillFLOPs(spec model.Spec, steps []engine.Batch) (counted, computed float64) {
	costs := engine.NewCosts(spec)
	last := spec
	last.Layers = 1
	if n := len(spec.LayerWindows); n > 0 {
		last.LayerWindows = spec.LayerWindows[n-1:]
	}
	lastCosts := engine.NewCosts(last)
	qkv := 2 * float64(spec.HiddenSize) * float64((spec.Heads+2*spec.KVHeads)*spec.HeadSize) // of a token
	var leftOut float64
	for _, b := range steps {
		counted += flops(costs, b.Work())
		s := b.Sequences[0]
		wanted := 0
		if s.Sample != nil {
			wanted = 1
		}
		n := len(s.Tokens)
		var all, kept latency.StepWork
		all.Add(s.Start, n, false)
		kept.Add(s.Start+n-wanted, wanted, false)
		leftOut += flops(lastCosts, all) - flops(lastCosts, kept) - qkv*float64(n-wanted)
	}
	return counted, counted - leftOut
}

func flops(costs engine.Costs, work latency.StepWork) float64 {
	prefill, decode := costs.Step(work)
	return prefill.FLOPs + decode.FLOPs
}

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
