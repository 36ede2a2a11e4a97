// Package gpu measures the CUDA engine beside what its device can do: the limits of the
// device, prefill of a prompt, decode, and KV pages copied to the host, all in one run, in
// turns. No scheduler is between.
//
// The command line imports it. The model is the caller's; Measure loads it, opens an
// engine and closes both. Its goroutines copy pages while decode runs, and are waited for.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/enginebatches"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Options say on what to measure.
type Options struct {
	// Load says which device, and hears of the weights. The plan says of which type they are.
	Load cuda.Config
	// LimitBytes of each of two pieces of device memory are for measuring it; 0 and little
	// are as cuda.Weights.NewMeter says.
	LimitBytes int64
	// CublasLt is where cuBLASLt is, as in cuda.Config; "": it is not measured, unless the
	// plan computes with it.
	CublasLt string
	// Progress, if set, is told after each round how many are done.
	Progress func(done, total int64)
}

// readers are how many goroutines copy KV pages at a time.
func readers() []int { return []int{1, 4} }

// Measure measures the plan with a model, which it closes as soon as the device has a
// copy.
func Measure(ctx context.Context, m *model.Model, p Plan, o Options) (_ *Result, err error) {
	spec := m.Spec()
	if err := p.ValidateFor(spec.Name, spec.ContextTokens); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	began := time.Now()
	o.Load.Weights = p.Weights
	weights, err := cuda.Load(ctx, m, o.Load)
	if err := errors.Join(err, m.Close()); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	loaded := time.Now()
	config := p.Config()
	config.CublasLt = o.CublasLt
	e, err := weights.NewEngine(config)
	if err != nil {
		return nil, fmt.Errorf("cuda engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	made := time.Now()
	if _, err := e.Step(ctx, enginebatches.Chunks([]int32{1}, kvcache.BlockRange(0, 1), 1, true)[0]); err != nil {
		return nil, fmt.Errorf("first step: %w", err)
	}
	stepped := time.Now()
	limits := cuda.MeterConfig{Bytes: o.LimitBytes, Products: p.Products, CublasLt: o.CublasLt}
	if o.CublasLt != "" {
		limits.Products = cuda.CublasLt
	}
	meter, err := weights.NewMeter(limits)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, meter.Close()) }()

	r := newRun(e, p, meter)
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	var rounds []round
	for i := range p.Rounds {
		now, err := r.round(ctx)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, now)
		if o.Progress != nil {
			o.Progress(int64(i+1), int64(p.Rounds))
		}
	}
	result := &Result{
		Plan: p, Device: weights.DeviceName(), DriverCUDA: weights.DriverVersion(), Model: spec.Name, ArithmeticClass: e.Capacity().Layout.ArithmeticClass,
		WeightBytes: weights.Bytes(), KVBytes: int64(e.Capacity().Blocks) * int64(e.Capacity().Layout.PageBytes()), WorkspaceBytes: cuda.WorkspaceBytes(spec, config),
		Start: Start{loaded.Sub(began).Seconds(), made.Sub(loaded).Seconds(), stepped.Sub(made).Seconds(), stepped.Sub(began).Seconds()},
	}
	result.Prefill.FLOPs, result.Prefill.FLOPsComputed = enginebatches.PrefillFLOPs(spec, r.prompt)
	result.sum(rounds, r.decoders, readers())
	return result, nil
}

// run is what one measurement computes again and again.
type run struct {
	plan     Plan
	engine   engine.Engine
	meter    *cuda.Meter
	prompt   []engine.Batch
	decoders []*decoder
	readers  []*reader
}

func newRun(e engine.Engine, p Plan, meter *cuda.Meter) *run {
	blocks := kvcache.BlockRange(0, blocksFor(p.PromptTokens))
	r := &run{plan: p, engine: e, meter: meter}
	r.prompt = enginebatches.Chunks(enginebatches.Prompt(p.PromptTokens, e.Model().VocabSize), blocks, p.ChunkTokens, true)
	places, _ := p.places()
	for _, at := range places {
		next := enginebatches.NewDecoder(e, at.batch, at.first, at.each)
		r.decoders = append(r.decoders, &decoder{place: at, Decoder: next, engine: e, costs: engine.CostsOf(e)})
	}
	for range slices.Max(readers()) {
		r.readers = append(r.readers, newReader(e, blocks))
	}
	return r
}

func (r *run) prepare(ctx context.Context) error {
	for _, d := range r.decoders {
		if err := d.Prepare(ctx, d.context, blocksFor(d.context)); err != nil {
			return fmt.Errorf("a batch of %d behind %d tokens: %w", d.batch, d.context, err)
		}
	}
	_, err := enginebatches.Prefill(ctx, r.engine, r.prompt)
	return err
}

func (r *run) round(ctx context.Context) (now round, err error) {
	if now.limits, err = r.meter.Measure(ctx); err != nil {
		return now, err
	}
	if now.prefill, err = enginebatches.Prefill(ctx, r.engine, r.prompt); err != nil {
		return now, err
	}
	for _, d := range r.decoders {
		var one decodeRound
		if one.long, err = d.run(ctx, d.context, r.plan.DecodeSteps); err != nil {
			return now, err
		}
		if short := d.short(); short > 0 {
			if one.short, err = d.run(ctx, short, r.plan.DecodeSteps); err != nil {
				return now, err
			}
		}
		now.decode = append(now.decode, one)
	}
	for _, n := range readers() {
		var one readRound
		if one.alone, err = readAlone(r.readers[:n], (*reader).chunks); err != nil {
			return now, fmt.Errorf("copy KV pages: %w", err)
		}
		if one.plain, err = readAlone(r.readers[:n], (*reader).plain); err != nil {
			return now, fmt.Errorf("copy KV pages to plain memory: %w", err)
		}
		if one.steps, one.beside, err = readBeside(ctx, r.readers[:n], r.decoders[0], r.plan.DecodeSteps); err != nil {
			return now, fmt.Errorf("copy KV pages beside decode: %w", err)
		}
		now.reads = append(now.reads, one)
	}
	return now, nil
}
