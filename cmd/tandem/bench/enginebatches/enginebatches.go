// Package enginebatches makes the batches that the benchmarks of engines compute, without a
// scheduler, and counts what they cost.
//
// The benchmarks under cmd/tandem/bench import it. It keeps nothing and starts no
// goroutines.
package enginebatches

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
	costs := engine.NewCosts(spec, engine.BytesPerWeight{}, 0)
	last := spec
	last.Layers = 1
	if n := len(spec.LayerWindows); n > 0 {
		last.LayerWindows = spec.LayerWindows[n-1:]
	}
	lastCosts := engine.NewCosts(last, engine.BytesPerWeight{}, 0)
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

// Decoder is one batch that decodes again and again. It is used by one goroutine.
type Decoder struct {
	engine engine.Engine
	next   engine.Batch
}

// NewDecoder decodes batch sequences, each in so many blocks of its own from first on.
func NewDecoder(e engine.Engine, batch, first, each int) *Decoder {
	d := &Decoder{engine: e}
	d.next.TokenBuffer = make([]int32, batch)
	for i := range batch {
		d.next.Sequences = append(d.next.Sequences, engine.Sequence{
			Tokens: make([]int32, 1), Blocks: kvcache.BlockRange(first+i*each, each), Sample: &greedy,
		})
	}
	return d
}

// Prepare computes a context of so many tokens, which fill so many blocks, for the first
// sequence and copies its pages to the others: what is read twice comes from caches.
func (d *Decoder) Prepare(ctx context.Context, tokens, blocks int) error {
	own := d.next.Sequences[0].Blocks[:blocks]
	for _, b := range Chunks(Prompt(tokens, d.engine.Model().VocabSize), own, d.engine.Capacity().MaxBatchTokens, false) {
		if _, err := d.engine.Step(ctx, b); err != nil {
			return fmt.Errorf("compute the context: %w", err)
		}
	}
	if err := d.copyPages(own); err != nil {
		return fmt.Errorf("copy the context: %w", err)
	}
	return nil
}

func (d *Decoder) copyPages(from []kvcache.BlockID) error {
	pages := d.engine.Pages()
	slices := make([]byte, len(from)*pages.Layout().SliceBytes)
	for layer := range d.engine.Model().Layers {
		if len(from) == 0 {
			return nil
		}
		if err := pages.Read(layer, from, slices); err != nil {
			return err
		}
		for _, s := range d.next.Sequences[1:] {
			if err := pages.Write(layer, s.Blocks[:len(from)], slices); err != nil {
				return err
			}
		}
	}
	return nil
}

// Begin puts the sequences back behind a context of so many tokens.
func (d *Decoder) Begin(context int) {
	for i := range d.next.Sequences {
		s := &d.next.Sequences[i]
		s.Start, s.Tokens[0] = context, int32((i*31+7)%d.engine.Model().VocabSize)
	}
}

// Compute computes the next step, which the next Step computes again.
func (d *Decoder) Compute(ctx context.Context) (engine.Output, error) {
	out, err := d.engine.Step(ctx, d.next)
	if err != nil {
		return out, fmt.Errorf("decode: %w", err)
	}
	return out, nil
}

// Step decodes one token of each sequence.
func (d *Decoder) Step(ctx context.Context) error {
	out, err := d.Compute(ctx)
	if err != nil {
		return err
	}
	for i := range d.next.Sequences {
		s := &d.next.Sequences[i]
		s.Start++
		s.Tokens[0] = out.Tokens[i]
	}
	return nil
}

// DecodeBytes is what one of so many steps of a batch behind a context reads, the mean
// over them.
func DecodeBytes(costs engine.Costs, batch, context, steps int) float64 {
	var sum float64
	for step := range steps {
		var work latency.StepWork
		for range batch {
			work.Add(context+step, 1, true)
		}
		prefill, decode := costs.Step(work)
		sum += prefill.ReadBytes + decode.ReadBytes
	}
	return sum / float64(steps)
}
