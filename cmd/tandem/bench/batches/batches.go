// Package batches makes the batches that the benchmarks of engines compute, without a
// scheduler, and counts what they cost.
//
// The benchmarks under cmd/tandem/bench import it. It keeps nothing and starts no
// goroutines.
package batches

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// greedy draws the likeliest token. Nobody changes it.
var greedy = engine.Sample{}

// Table is n blocks from first on.
func Table(first, n int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, n)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(first + i)
	}
	return blocks
}

// Prompt makes up n tokens.
func Prompt(n, vocabulary int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((i*7919 + 11) % vocabulary)
	}
	return tokens
}

// Chunks are the steps of a prompt, of at most size tokens each. The last draws a token
// if it should.
func Chunks(tokens []int32, blocks []kvcache.BlockID, size int, draw bool) []engine.Batch {
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

// Prefill computes the steps of a prompt, which takes as long as is returned.
func Prefill(ctx context.Context, e engine.Engine, steps []engine.Batch) (time.Duration, error) {
	began := time.Now()
	for _, b := range steps {
		if _, err := e.Step(ctx, b); err != nil {
			return 0, fmt.Errorf("prefill: %w", err)
		}
	}
	return time.Since(began), nil
}

// PrefillFLOPs is what a prompt costs: counted, as if every layer computed all of it,
// and computed, without what the engine leaves out of the last layer. There only the
// row that a token is drawn from goes through attention and what follows.
func PrefillFLOPs(spec model.Spec, steps []engine.Batch) (counted, computed float64) {
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
