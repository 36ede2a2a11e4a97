package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/memory"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// Progress is told how far a stage of loading is: "map" in files, "digest" and
// "pack" in bytes.
type Progress func(stage string, done, total int64)

// engines makes the engines of one process: they share one copy of the weights
// and one compute pool.
type engines struct {
	options EngineOptions
	dir     string
	spec    model.Spec
	// tokenizer is nil in a process without a router.
	tokenizer *tokenizer.Tokenizer
	// chat is the chat template, nil if there is none that can be used: chatError
	// says why.
	chat      chat.Template
	chatError error
	// At most one of the two is there: none for the simulated engine.
	weights    *cpu.Weights
	gpuWeights *cuda.Weights
	health     *cuda.Health // nil: the GPU is not watched
	// profile is nil if none was given; device if the engines do not share one.
	profile *latency.Profile
	device  *simulated.Device
	made    []engine.Engine
	watch   func(engine.Losing) // hears of those made that can lose their device; or nil
}

// needs are the parts of a process, which say what it loads.
type needs struct {
	router  bool
	workers int
}

// loadEngines loads what the parts need, once for the process: a router the
// tokenizer and the model's description, workers the weights. What is quick to
// check is checked before the weights are read.
func loadEngines(ctx context.Context, o Options, parts needs, logger *slog.Logger, progress Progress) (*engines, error) {
	dir, err := modeldir.Find(o.Model)
	if err != nil {
		return nil, err
	}
	// The spec's Digest stays empty for a router alone: that of the weights is
	// known to those who read them.
	spec, err := model.LoadSpec(dir, model.Options{Name: o.ModelName, ContextTokens: o.ContextTokens})
	if err != nil {
		return nil, err
	}
	if err := o.checkContext(spec); err != nil {
		return nil, err
	}
	e := &engines{options: o.Engine, dir: dir, spec: spec}
	if parts.router {
		if e.tokenizer, err = modeldir.OpenTokenizer(dir); err != nil {
			return nil, err
		}
		if err := e.openChat(ctx, o.ChatTemplate, logger); err != nil {
			return nil, err
		}
	}
	if parts.workers == 0 {
		return e, nil
	}
	if err := o.Engine.chooseEngine(spec, logger); err != nil {
		return nil, err
	}
	left, known := memory.Available(os.DirFS("/"))
	warning, err := o.checkModel(spec, parts.workers, left, known)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		logger.Warn("not every worker may have room for a full context", slog.String("why", warning))
	}
	e.options = o.Engine // Auto has become a number
	if o.Engine.Profile != "" {
		if e.profile, err = readProfile(o.Engine.Profile); err != nil {
			return nil, err
		}
	}
	if o.Engine.Name == EngineSimulated {
		e.spec.Digest = simulated.Digest(spec)
		if o.Engine.SimulatedDevice.ShareDevice {
			e.device = simulated.NewDevice()
		}
		return e, nil
	}
	if err := e.loadWeights(ctx, o, logger, progress); err != nil {
		return nil, err
	}
	return e, nil
}

// openChat opens the chat template. One that was asked for has to be good; without
// the model's own, or with one that cannot be rendered, prompts can be completed.
func (e *engines) openChat(ctx context.Context, file string, logger *slog.Logger) error {
	e.chat, e.chatError = chat.Open(e.dir, chat.Options{File: file})
	switch {
	case e.chatError == nil:
		if err := chat.Try(ctx, e.chat); err != nil {
			logger.Warn("chat template fails on the simplest conversation", slog.Any("error", err))
		}
		return nil
	case file != "":
		return fmt.Errorf("--chat-template: %w", e.chatError)
	}
	e.chat = nil
	if !errors.Is(e.chatError, chat.ErrNone) {
		logger.Warn("chat template cannot be used: conversations are refused", slog.Any("error", e.chatError))
	}
	return nil
}

// loadWeights reads and checks the weights, and packs them or reads them packed.
func (e *engines) loadWeights(ctx context.Context, o Options, logger *slog.Logger, progress Progress) error {
	began := time.Now()
	m, err := model.OpenContext(ctx, e.dir, model.Options{Name: o.ModelName, ContextTokens: o.ContextTokens, Progress: progress})
	if err != nil {
		return err
	}
	opened := time.Now()
	if o.Engine.Name == EngineCUDA {
		err = e.loadGPU(ctx, o, m, logger, progress)
		return errors.Join(err, m.Close())
	}
	weights, err := cpu.Load(ctx, m, cpu.LoadConfig{
		Type: o.Engine.CPUWeights, Threads: o.Engine.Threads, CacheDir: o.Engine.CPUWeightCache,
		Progress: func(done, total int64) { progress("pack", done, total) },
		Warn:     func(err error) { logger.Warn("weight cache cannot be used", slog.Any("error", err)) },
	})
	loaded := time.Now()
	// The engine has packed what it needs; the mapped files are not read again.
	err = errors.Join(err, m.Close())
	if err != nil {
		return err
	}
	e.spec, e.weights = m.Spec(), weights
	logger.Info("weights loaded", slog.String("type", string(weights.Type())), slog.Int64("bytes", weights.Bytes()), slog.Bool("cached", weights.FromCache()),
		slog.Float64("open_seconds", opened.Sub(began).Seconds()), slog.Float64("load_seconds", loaded.Sub(opened).Seconds()))
	switch {
	case e.profile != nil && e.profile.Limits != nil:
		weights.SetLimits(*e.profile.Limits)
	case o.Metrics != "":
		// Now, while nothing computes: the metrics compare the engine with it.
		_, err = weights.MeasureLimits(ctx, 0)
	}
	return err
}

// loadGPU copies the weights to the GPU.
func (e *engines) loadGPU(ctx context.Context, o Options, m *model.Model, logger *slog.Logger, progress Progress) error {
	began := time.Now()
	number, err := o.Engine.gpu()
	if err != nil {
		return err
	}
	weights, err := cuda.Load(ctx, m, cuda.LoadConfig{
		Library: o.Engine.CUDADriver, Device: number, Weights: o.Engine.cudaWeights(), CopyRate: o.Engine.GPUCopyRate,
		Progress: func(done, total int64) { progress("pack", done, total) },
	})
	if err != nil {
		return err
	}
	e.spec, e.gpuWeights = m.Spec(), weights
	logger.Info("weights loaded", slog.String("device", o.Engine.Device), slog.String("name", weights.DeviceName()),
		slog.String("type", string(weights.Type())), slog.Int64("bytes", weights.Bytes()), slog.Float64("load_seconds", time.Since(began).Seconds()))
	return nil
}

// add makes one more engine, with KV pages of its own, for the worker id of a role.
func (e *engines) add(id string, role controlv1.Role) (engine.Engine, error) {
	made, err := e.newEngine(id, role)
	if err != nil {
		return nil, err
	}
	e.made = append(e.made, made)
	if losing, can := made.(engine.Losing); can && e.watch != nil {
		e.watch(losing)
	}
	return made, nil
}

func (e *engines) newEngine(id string, role controlv1.Role) (engine.Engine, error) {
	switch {
	case e.gpuWeights != nil:
		config := e.options.cudaConfig()
		config.Yields = role == controlv1.Role_ROLE_PREFILL // many tokens wait for a step of decode
		made, err := e.gpuWeights.NewEngine(config)
		if err != nil {
			return nil, fmt.Errorf("cuda engine: %w", err)
		}
		return made, nil
	case e.weights == nil:
		return e.newSimulated(id)
	}
	made, err := e.weights.NewEngine(e.options.cpuConfig())
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	return made, nil
}

// cpuConfig sizes a worker's CPU engine, which uses all threads of the weights.
func (e EngineOptions) cpuConfig() cpu.Config {
	return cpu.Config{
		KV: e.CPUKV, KVBytes: int64(e.KVMemory), BlockTokens: e.BlockTokens, MaxBatchTokens: e.MaxBatchTokens, MaxSequences: e.MaxSequences,
	}
}

// newSimulated makes a simulated engine with as many blocks as a real one would
// have in the same memory. They take memory as they are used, and little of it.
func (e *engines) newSimulated(id string) (engine.Engine, error) {
	o := e.options
	trouble, err := o.SimulatedDevice.trouble(id)
	if err != nil {
		return nil, err
	}
	if e.profile != nil && o.SimulatedDevice.Jitter < 0 {
		trouble.Jitter = e.profile.Jitter
	}
	link, err := o.SimulatedDevice.bandwidth()
	if err != nil {
		return nil, err
	}
	slice := simulated.SliceBytes(e.spec, o.BlockTokens)
	cfg := simulated.Config{
		Spec: e.spec, BlockTokens: o.BlockTokens, Blocks: int(min(int64(o.KVMemory)/int64(slice*e.spec.Layers), maxSimulatedBlocks)),
		MaxBatchTokens: o.MaxBatchTokens, MaxSequences: o.MaxSequences,
		Profile: e.profile, StepTime: o.Simulated, Trouble: trouble, Device: e.device, LinkBytesPerSecond: link, Precise: true,
	}
	if o.SimulatedDevice.RealPages {
		// Records need 8 bytes a token, which the KV of a tiny model has not.
		cfg.SliceBytes = max(slice, simulated.LeastSliceBytes(o.BlockTokens))
	}
	return simulated.New(cfg)
}

// computesOn is what the model runs on, for people.
func (e *engines) computesOn() string {
	switch {
	case e.gpuWeights != nil:
		return fmt.Sprintf("%s (%s), weights in %s, KV in %s", e.options.Device, e.gpuWeights.DeviceName(), e.gpuWeights.Type(), e.options.cudaKV())
	case e.weights != nil:
		return fmt.Sprintf("%s (%d threads)", DeviceCPU, e.weights.Threads())
	}
	return EngineSimulated
}

// outsideBytes is the memory outside Go's heap that the engines have and, for KV
// pages that were never used, may come to have.
func (e *engines) outsideBytes() int64 {
	if e.gpuWeights != nil {
		return int64(len(e.made)) * cuda.HostBytes(e.spec, e.options.cudaConfig())
	}
	if e.weights == nil {
		return 0
	}
	config := e.options.cpuConfig()
	config.Threads = e.weights.Threads()
	return e.weights.Bytes() + int64(len(e.made))*(config.KVBytes+cpu.WorkspaceBytes(e.spec, e.weights.Type(), config))
}

// close frees all engines, then the weights.
func (e *engines) close() error {
	var errs []error
	if e.health != nil {
		errs = append(errs, e.health.Close())
	}
	for _, made := range e.made {
		errs = append(errs, made.Close())
	}
	if e.weights != nil {
		errs = append(errs, e.weights.Close())
	}
	if e.gpuWeights != nil {
		errs = append(errs, e.gpuWeights.Close())
	}
	return errors.Join(errs...)
}
