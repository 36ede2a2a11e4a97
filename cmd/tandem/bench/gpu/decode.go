package gpu

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/batches"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// waiter is an engine that says how long all its steps have waited for the device.
type waiter interface{ Waited() time.Duration }

// warmSteps of decode are not counted.
const warmSteps = 3

// decoder is one batch with one context that decodes again and again.
type decoder struct {
	place
	engine engine.Engine
	costs  engine.Costs
	next   engine.Batch
}

func newDecoder(e engine.Engine, p place) *decoder {
	d := &decoder{place: p, engine: e, costs: engine.CostsOf(e)}
	d.next.Room = make([]int32, p.batch)
	for i := range p.batch {
		d.next.Sequences = append(d.next.Sequences, engine.Sequence{
			Tokens: make([]int32, 1), Blocks: batches.Table(p.first+i*p.each, p.each), Sample: batches.Greedy(),
		})
	}
	return d
}

// prepare computes the context of the first sequence and copies its pages to the others,
// whose blocks are their own: what is read twice comes from caches.
func (d *decoder) prepare(ctx context.Context) error {
	blocks := d.next.Sequences[0].Blocks[:blocksFor(d.context)]
	tokens := batches.Prompt(d.context, d.engine.Model().VocabSize)
	for _, b := range batches.Chunks(tokens, blocks, d.engine.Capacity().MaxBatchTokens, false) {
		if _, err := d.engine.Step(ctx, b); err != nil {
			return fmt.Errorf("compute the context: %w", err)
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	slices := make([]byte, len(blocks)*d.engine.Pages().Layout().SliceBytes)
	for layer := range d.engine.Model().Layers {
		if err := d.engine.Pages().Read(layer, blocks, slices); err != nil {
			return fmt.Errorf("copy the context: %w", err)
		}
		for _, s := range d.next.Sequences[1:] {
			if err := d.engine.Pages().Write(layer, s.Blocks[:len(blocks)], slices); err != nil {
				return fmt.Errorf("copy the context: %w", err)
			}
		}
	}
	return nil
}

// steps are steps of decode, as they were measured.
type steps struct {
	each []time.Duration
	took time.Duration // all of them
	cpu  time.Duration // of the thread that called them
	host time.Duration // of it all, what was no waiting for the device
}

// run decodes so many steps behind a context, after a few that are not counted.
func (d *decoder) run(ctx context.Context, context, count int) (s steps, err error) {
	runtime.LockOSThread() // whose clock is read
	defer runtime.UnlockOSThread()
	if _, err := d.repeat(ctx, context, min(warmSteps, count)); err != nil {
		return s, err
	}
	cpu, waited := threadTime(), d.waited()
	s.each, err = d.repeat(ctx, context, count)
	s.cpu = threadTime() - cpu
	for _, one := range s.each {
		s.took += one
	}
	s.host = s.took - (d.waited() - waited)
	return s, err
}

func (d *decoder) waited() time.Duration {
	if w, is := d.engine.(waiter); is {
		return w.Waited()
	}
	return 0
}

func (d *decoder) repeat(ctx context.Context, context, count int) ([]time.Duration, error) {
	for i := range d.next.Sequences {
		s := &d.next.Sequences[i]
		s.Start, s.Tokens[0] = context, int32((i*31+7)%d.engine.Model().VocabSize)
	}
	each := make([]time.Duration, 0, count)
	for range count {
		began := time.Now()
		out, err := d.engine.Step(ctx, d.next)
		if err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
		each = append(each, time.Since(began))
		for i := range d.next.Sequences {
			s := &d.next.Sequences[i]
			s.Start++
			s.Tokens[0] = out.Tokens[i]
		}
	}
	return each, nil
}

// bytes is what one of so many steps behind a context reads, the mean over them.
func (d *decoder) bytes(context, count int) float64 {
	var sum float64
	for step := range count {
		var work latency.StepWork
		for range d.batch {
			work.Add(context+step, 1, true)
		}
		prefill, decode := d.costs.Step(work)
		sum += prefill.ReadBytes + decode.ReadBytes
	}
	return sum / float64(count)
}

// short is the context that a long one is compared with, to see what attention takes; it
// is of the same pages. 0: the context is too short for that.
func (d *decoder) short() int {
	if d.context < 256 {
		return 0
	}
	return d.context / 16
}
