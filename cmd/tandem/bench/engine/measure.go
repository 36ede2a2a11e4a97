package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/batches"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// barrierBudget is what a round spends on barriers, at least.
	barrierBudget = 50 * time.Millisecond
	// warmSteps of decode are not counted.
	warmSteps = 3
)

// Measure measures an engine on weights, which nobody else uses meanwhile. progress, if
// set, is told after each round how many are done.
func Measure(ctx context.Context, w *cpu.Weights, p Plan, progress func(done, total int64)) (_ *Result, err error) {
	if err := p.ValidateFor(w.Spec().Name, w.Spec().ContextTokens); err != nil {
		return nil, err
	}
	if p.DType != w.Type() {
		return nil, fmt.Errorf("--dtype: %s, but the weights are in %s", p.DType, w.Type())
	}
	e, err := w.NewEngine(p.Config())
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	reading, err := w.NewReading(p.LimitsFor == 0)
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	r := newRun(e, p)
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	var rounds []round
	barrier := 0.0
	for i := range p.Rounds {
		var now round
		if now.limits, err = w.MeasureLimits(ctx, p.LimitsFor); err != nil {
			return nil, err
		}
		if now.prefill, err = r.prefill(ctx); err != nil {
			return nil, err
		}
		if err := r.decode(ctx, reading, &now); err != nil {
			return nil, err
		}
		ns, err := w.MeasureBarrier(ctx, barrierBudget)
		if err != nil {
			return nil, err
		}
		if i == 0 || ns < barrier {
			barrier = ns
		}
		rounds = append(rounds, now)
		if progress != nil {
			progress(int64(i+1), int64(p.Rounds))
		}
	}
	after, err := w.MeasureLimits(ctx, p.LimitsFor)
	if err != nil {
		return nil, err
	}
	result := &Result{
		Plan: p, Model: w.Spec().Name, ISA: w.ISA(), Threads: w.Threads(), ChunkTokens: e.Capacity().MaxBatchTokens,
		WeightBytes: w.Bytes(), BarrierNs: barrier,
	}
	result.DecodeStepBytes = decodeBytes(w.Spec(), p) / float64(p.DecodeSteps)
	result.PrefillFLOPs, result.PrefillFLOPsComputed = batches.PrefillFLOPs(w.Spec(), r.prompt)
	result.sum(rounds, after)
	return result, nil
}

// round is one of each.
type round struct {
	limits         latency.Limits
	prefill        time.Duration // of the prompt
	steps          []time.Duration
	windows        []window
	allocs, allocd uint64 // of all steps: allocations, bytes
}

// run is what one measurement computes again and again.
type run struct {
	engine engine.Engine
	plan   Plan
	prompt []engine.Batch
	next   engine.Batch // of decode
}

func newRun(e engine.Engine, p Plan) *run {
	size, vocabulary := e.Capacity().MaxBatchTokens, e.Model().VocabSize
	r := &run{engine: e, plan: p}
	r.next.Room = make([]int32, p.Batch)
	first := blocksFor(p.PromptTokens)
	r.prompt = batches.Chunks(batches.Prompt(p.PromptTokens, vocabulary), batches.Table(0, first), size, true)
	each := blocksFor(p.ContextTokens + p.DecodeSteps)
	for i := range p.Batch {
		r.next.Sequences = append(r.next.Sequences, engine.Sequence{
			Tokens: make([]int32, 1), Blocks: batches.Table(first+i*each, each), Sample: batches.Greedy(),
		})
	}
	return r
}

// prepare computes the context of the decoded sequences and runs everything once, so
// that every page of memory is there. The sequences have one context, each in blocks of
// its own.
func (r *run) prepare(ctx context.Context) error {
	blocks := r.next.Sequences[0].Blocks
	for _, b := range batches.Chunks(batches.Prompt(r.plan.ContextTokens, r.engine.Model().VocabSize), blocks, r.engine.Capacity().MaxBatchTokens, false) {
		if _, err := r.engine.Step(ctx, b); err != nil {
			return fmt.Errorf("compute the context: %w", err)
		}
	}
	slice := make([]byte, r.engine.Pages().Layout().SliceBytes)
	for layer := range r.engine.Model().Layers {
		for b, from := range blocks {
			if err := r.engine.Pages().Read(layer, []kvcache.BlockID{from}, slice); err != nil {
				return fmt.Errorf("copy the context: %w", err)
			}
			for _, s := range r.next.Sequences[1:] {
				if err := r.engine.Pages().Write(layer, s.Blocks[b:b+1], slice); err != nil {
					return fmt.Errorf("copy the context: %w", err)
				}
			}
		}
	}
	if _, err := r.prefill(ctx); err != nil {
		return err
	}
	r.begin()
	for range min(warmSteps, r.plan.DecodeSteps) {
		if err := r.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prefill computes the prompt, which takes as long as is returned.
func (r *run) prefill(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for _, b := range r.prompt {
		if _, err := r.engine.Step(ctx, b); err != nil {
			return 0, fmt.Errorf("prefill: %w", err)
		}
	}
	return time.Since(began), nil
}

// begin puts the decoded sequences back to their context.
func (r *run) begin() {
	for i := range r.next.Sequences {
		s := &r.next.Sequences[i]
		s.Start, s.Tokens[0] = r.plan.ContextTokens, int32((i*31+7)%r.engine.Model().VocabSize)
	}
}

// step decodes one token of each sequence.
func (r *run) step(ctx context.Context) error {
	out, err := r.engine.Step(ctx, r.next)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for i := range r.next.Sequences {
		s := &r.next.Sequences[i]
		s.Start++
		s.Tokens[0] = out.Tokens[i]
	}
	return nil
}
