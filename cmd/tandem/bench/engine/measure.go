// Package engine measures the CPU engine beside what the machine can do: prefill of a
// prompt as a share of the processor's peak, decode as a share of the speed of memory,
// all in one run, in turns, on the same threads; decode takes turns with reading every
// 50 ms, since others change how fast memory is. No scheduler is between.
//
// The command line imports it. The weights are the caller's; Measure opens an engine on
// them and closes it. It starts no goroutines.
package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/enginebatches"
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
		if now.prefill, err = enginebatches.Prefill(ctx, r.engine, r.prompt); err != nil {
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
	result.DecodeStepBytes = enginebatches.DecodeBytes(engine.CostsOf(e), p.Batch, p.ContextTokens, p.DecodeSteps)
	result.PrefillFLOPs, result.PrefillFLOPsComputed = enginebatches.PrefillFLOPs(w.Spec(), r.prompt)
	result.sum(rounds, after)
	return result, nil
}

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
	next   *enginebatches.Decoder
}

func newRun(e engine.Engine, p Plan) *run {
	size, vocabulary := e.Capacity().MaxBatchTokens, e.Model().VocabSize
	r := &run{engine: e, plan: p}
	first := blocksFor(p.PromptTokens)
	r.prompt = enginebatches.Chunks(enginebatches.Prompt(p.PromptTokens, vocabulary), kvcache.BlockRange(0, first), size, true)
	r.next = enginebatches.NewDecoder(e, p.Batch, first, blocksFor(p.ContextTokens+p.DecodeSteps))
	return r
}

// prepare computes the context of the decoded sequences and runs everything once, so
// that every page of memory is there. The sequences have one context, each in blocks of
// its own.
func (r *run) prepare(ctx context.Context) error {
	if err := r.next.Prepare(ctx, r.plan.ContextTokens, blocksFor(r.plan.ContextTokens)); err != nil {
		return err
	}
	if _, err := enginebatches.Prefill(ctx, r.engine, r.prompt); err != nil {
		return err
	}
	r.next.Begin(r.plan.ContextTokens)
	for range min(warmSteps, r.plan.DecodeSteps) {
		if err := r.next.Step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// window is some steps of decode between two windows of reading. Who else uses memory
// changes from moment to moment: what is compared are moments next to each other.
type window struct {
	steps         int
	took          time.Duration
	before, after float64 // bytes per second read
}

// ofRead is what each window reads, at stepBytes a step, as a share of what reading
// reached around it.
func ofRead(windows []window, stepBytes float64) []float64 {
	shares := make([]float64, len(windows))
	for i, w := range windows {
		shares[i] = stepBytes * float64(w.steps) / w.took.Seconds() / ((w.before + w.after) / 2)
	}
	return shares
}

// decode is one round of it, into the round: its windows in turns with reading.
func (r *run) decode(ctx context.Context, reading *cpu.Reading, now *round) error {
	r.next.Begin(r.plan.ContextTokens)
	now.steps = make([]time.Duration, 0, r.plan.DecodeSteps)
	before, err := reading.Measure(ctx, r.plan.window())
	if err != nil {
		return err
	}
	for len(now.steps) < r.plan.DecodeSteps {
		if err := r.warm(ctx, now.steps); err != nil {
			return err
		}
		w, err := r.decodeWindow(ctx, now)
		if err != nil {
			return err
		}
		w.before = before
		if w.after, err = reading.Measure(ctx, r.plan.window()); err != nil {
			return err
		}
		now.windows = append(now.windows, w)
		before = w.after
	}
	return nil
}

// warm computes the next step, which then is computed again: reading has left nothing of
// the model in the caches. Where a step takes longer than a window there is no need to.
func (r *run) warm(ctx context.Context, done []time.Duration) error {
	if n := len(done); r.plan.window() == 0 || n > 0 && done[n-1] >= r.plan.window() {
		return nil
	}
	_, err := r.next.Compute(ctx)
	return err
}

// decodeWindow decodes for a window, one step at least, and counts what it allocates.
func (r *run) decodeWindow(ctx context.Context, now *round) (w window, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for w.steps == 0 || w.took < r.plan.window() && len(now.steps) < r.plan.DecodeSteps {
		began := time.Now()
		if err := r.next.Step(ctx); err != nil {
			return w, err
		}
		took := time.Since(began)
		now.steps = append(now.steps, took)
		w.steps++
		w.took += took
	}
	runtime.ReadMemStats(&after)
	now.allocs += after.Mallocs - before.Mallocs
	now.allocd += after.TotalAlloc - before.TotalAlloc
	return w, nil
}
