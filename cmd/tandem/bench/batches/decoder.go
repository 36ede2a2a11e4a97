package batches

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
)

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
			Tokens: make([]int32, 1), Blocks: Table(first+i*each, each), Sample: &greedy,
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
