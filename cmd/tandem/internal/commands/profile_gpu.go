package commands

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// gpuProfile is the defaults of `profile` for a GPU.
var gpuProfile = struct{ maxContext, maxChunk, maxSequences int }{32768, 8192, 256}

const (
	// gpuLimitBytes of each of two pieces of memory are for measuring the limits; no more
	// than the weights take, so that a small model is compared with what caches can do.
	gpuLimitBytes = 1 << 30
	// gpuLimitsApart is how far apart the limits of a GPU may be that nothing disturbs:
	// its clock follows its heat and its power.
	gpuLimitsApart = 0.3
)

// onGPU says whether a GPU is measured, finds flags that contradict it, and puts in the
// defaults for a GPU.
func (f *profileFlags) onGPU(fs *pflag.FlagSet) (bool, error) {
	on, err := f.gpu.choose(fs, gpuChoices(), []string{"threads", "cpu-weights", "cpu-kv", "cpu-weight-cache", "from-distserve"})
	if !on || err != nil {
		return on, err
	}
	if !fs.Changed("kv-memory") {
		f.kvMemory = bytesize.Auto
	}
	for name, value := range map[string]struct {
		to *int
		is int
	}{
		"max-context":   {&f.maxContext, gpuProfile.maxContext},
		"max-chunk":     {&f.maxChunk, gpuProfile.maxChunk},
		"max-sequences": {&f.maxSequences, gpuProfile.maxSequences},
	} {
		if !fs.Changed(name) {
			*value.to = value.is
		}
	}
	if most := cuda.MostBatchTokens - f.maxSequences; f.maxChunk > most {
		return on, fmt.Errorf("--max-chunk: %d is more than the %d that a GPU computes beside --max-sequences: pass less", f.maxChunk, most)
	}
	return on, f.gpu.plan.ValidateEngine()
}

// measureGPU is measure with the CUDA engine.
func (f *profileFlags) measureGPU(ctx context.Context, stderr io.Writer) (_ *profileReport, err error) {
	if err := f.gpu.present(); err != nil {
		return nil, err
	}
	p := newProgress(stderr)
	defer p.finish()
	m, err := modelForGPU(ctx, f.model, f.preset, p)
	if err != nil {
		return nil, err
	}
	load := f.gpu.options.Load
	load.Weights = f.gpu.plan.Weights
	load.Progress = func(done, total int64) { p.report("pack", done, total) }
	weights, err := cuda.Load(ctx, m, load)
	if err := errors.Join(err, m.Close()); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, weights.Close()) }()
	limits := cuda.MeterConfig{Bytes: min(gpuLimitBytes, weights.Bytes()), Products: f.gpu.plan.Products, CublasLt: f.gpu.options.CublasLt}
	if limits.CublasLt != "" {
		limits.Products = cuda.CublasLt
	}
	meter, err := weights.NewMeter(limits)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, meter.Close()) }()
	return f.withGPU(ctx, weights, meter, p.report)
}

// withGPU profiles an engine on loaded weights.
func (f *profileFlags) withGPU(ctx context.Context, weights *cuda.Weights, meter *cuda.Meter, said func(stage string, done, total int64)) (_ *profileReport, err error) {
	config, err := f.gpuConfig(weights)
	if err != nil {
		return nil, err
	}
	e, err := weights.NewEngine(config)
	if err != nil {
		return nil, fmt.Errorf("cuda engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()

	if _, err := meter.Measure(ctx); err != nil { // it finds an idle GPU's clock low
		return nil, err
	}
	result, measured, err := f.run(ctx, e, profile.Options{Grid: profile.GPUGrid(), Even: true, Progress: said}, func() (latency.Limits, error) {
		l, err := meter.Measure(ctx)
		return latency.Limits{FLOPsPerSecond: max(l.ProductFLOPs, l.CublasLtFLOPs), ReadBytesPerSecond: max(l.CopyBytes, l.ReadBytes), Valid: true}, err
	})
	if err != nil {
		return nil, err
	}
	limits := profile.LimitsWithin(gpuLimitsApart, measured...)
	result.Profile.Limits, result.Profile.Device = &limits, weights.DeviceName()
	return newProfileReport(result, weights.Bytes()), nil
}

// gpuConfig sizes the engine. Without --kv-memory, pages take nine tenths of what is free,
// but for what activations need: the driver, graphs and others want some.
func (f *profileFlags) gpuConfig(weights *cuda.Weights) (cuda.Config, error) {
	plan := f.gpu.plan
	config := cuda.Config{
		KVBytes: int64(f.kvMemory), BlockTokens: f.blockTokens, MaxBatchTokens: f.maxChunk + f.maxSequences, MaxSequences: f.maxSequences,
		KV: plan.KV, Products: plan.Products, CublasLt: f.gpu.options.CublasLt, NoGraphs: plan.NoGraphs,
	}
	if f.kvMemory != bytesize.Auto {
		return config, nil
	}
	free, err := weights.FreeBytes()
	if err != nil {
		return config, fmt.Errorf("cuda engine: %w", err)
	}
	workspace := cuda.WorkspaceBytes(weights.Spec(), config)
	if config.KVBytes = free/10*9 - workspace; config.KVBytes <= 0 {
		return config, fmt.Errorf("%s is free on the device beside the weights, and activations take %s: pass a smaller --max-chunk or a smaller model",
			bytesize.Text(free), bytesize.Text(workspace))
	}
	return config, nil
}
