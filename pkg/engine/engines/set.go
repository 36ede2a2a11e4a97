package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Set is the engines of one process: they share one copy of the weights and one compute
// pool. One goroutine uses it.
type Set struct {
	config Config
	spec   model.Spec
	// At most one of the two is there: none for the simulated engine.
	weights    *cpu.Weights
	gpuWeights *cuda.Weights
	health     *cuda.Health // nil: the GPU is not watched
	profile    *latency.Profile
	made       []engine.Engine
	draft      *draft // nil: there is no draft model
}

// Load loads the weights of the model in dir for the engine of c, after Choose and Size.
// options.Progress is called on the caller's goroutine, with "map" in files, "digest" and
// "pack" in bytes.
func Load(ctx context.Context, c Config, dir string, options model.Options, logger *slog.Logger) (_ *Set, err error) {
	s := &Set{config: c.sized()}
	if c.Profile != "" {
		if s.profile, err = latency.ReadProfileFile(c.Profile); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
	}
	if c.Name == Simulated {
		if s.spec, err = model.LoadSpec(dir, options); err != nil {
			return nil, err
		}
		s.spec.Digest = simulated.Digest(s.spec)
		if c.Simulated.ShareDevice {
			s.config.Simulated.Device = simulated.NewDevice()
		}
		return s, nil
	}
	began := time.Now()
	m, err := model.OpenContext(ctx, dir, options)
	if err != nil {
		return nil, err
	}
	s.spec = m.Spec()
	load := s.loadCPU
	if c.Name == CUDA {
		load = s.loadGPU
	}
	pack := func(done, total int64) {
		if options.Progress != nil {
			options.Progress("pack", done, total)
		}
	}
	opened := time.Now()
	attributes, err := load(ctx, m, pack, logger)
	loaded := time.Now()
	// The engine has what it needs; the mapped files are not read again.
	if err := errors.Join(err, m.Close()); err != nil {
		return nil, err
	}
	logger.Info("weights loaded", append(attributes,
		slog.Float64("open_seconds", opened.Sub(began).Seconds()), slog.Float64("load_seconds", loaded.Sub(opened).Seconds()))...)
	return s, nil
}

// loadCPU packs the weights, or reads them packed. It returns what the log says of them.
func (s *Set) loadCPU(ctx context.Context, m *model.Model, progress func(done, total int64), logger *slog.Logger) (said []any, err error) {
	config := s.config.CPU
	config.Progress = progress
	config.Warn = func(err error) { logger.Warn("cannot use the weight cache", slog.Any("error", err)) }
	if s.weights, err = cpu.Load(ctx, m, config); err != nil {
		return nil, err
	}
	if s.profile != nil && s.profile.Limits != nil {
		s.weights.SetLimits(*s.profile.Limits)
	}
	return []any{slog.String("type", string(s.weights.Type())), slog.Int64("bytes", s.weights.Bytes()), slog.Bool("cached", s.weights.FromCache())}, nil
}

// loadGPU copies the weights to the GPU.
func (s *Set) loadGPU(ctx context.Context, m *model.Model, progress func(done, total int64), _ *slog.Logger) (said []any, err error) {
	config := s.config.CUDA
	config.Progress = progress
	if s.gpuWeights, err = cuda.Load(ctx, m, config); err != nil {
		return nil, err
	}
	return []any{
		slog.String("device", s.config.Device), slog.String("name", s.gpuWeights.DeviceName()),
		slog.String("type", string(s.gpuWeights.Type())), slog.Int64("bytes", s.gpuWeights.Bytes()),
	}, nil
}

// MeasureLimits measures what the processor and its memory can do at most, with which
// metrics compare the CPU engine, unless the profile says it. Nothing else computes
// meanwhile.
func (s *Set) MeasureLimits(ctx context.Context) error {
	if s.weights == nil || s.profile != nil && s.profile.Limits != nil {
		return nil
	}
	_, err := s.weights.MeasureLimits(ctx, 0)
	return err
}

// Spec describes the model, with the digest of its weights.
func (s *Set) Spec() model.Spec { return s.spec }

// Engines are those that New made.
func (s *Set) Engines() []engine.Engine { return s.made }

// New makes one more engine, with KV pages of its own, for the worker id of a role. The
// Set closes it.
func (s *Set) New(id string, role controlv1.Role) (made engine.Engine, err error) {
	switch {
	case s.gpuWeights != nil:
		config := s.config.CUDA
		config.Yields = role == controlv1.Role_ROLE_PREFILL // many tokens wait for a step of decode
		if made, err = s.gpuWeights.NewEngine(config); err != nil {
			return nil, fmt.Errorf("cuda engine: %w", err)
		}
	case s.weights != nil:
		config := s.config.CPU
		config.SharedKV = s.config.ShareKV && role == controlv1.Role_ROLE_DECODE
		if made, err = s.weights.NewEngine(config); err != nil {
			return nil, fmt.Errorf("cpu engine: %w", err)
		}
	default:
		if made, err = s.newSimulated(id, role); err != nil {
			return nil, err
		}
	}
	if s.draft != nil && role == controlv1.Role_ROLE_DECODE {
		beside, err := s.draft.beside(made)
		if err != nil {
			return nil, errors.Join(err, made.Close())
		}
		made = beside
	}
	s.made = append(s.made, made)
	return made, nil
}

// SimulatedBlocks is how many blocks the simulated engine has: as many as a real one in the
// same memory. Size is called before.
func (c *Config) SimulatedBlocks(spec model.Spec) int {
	block := int64(simulated.SliceBytes(spec, c.BlockTokens)) * int64(spec.Layers)
	return int(min(int64(c.KVMemory)/block, maxSimulatedBlocks))
}

// maxSimulatedBlocks bounds the blocks of the simulated engine.
const maxSimulatedBlocks = 1 << 22

// newSimulated makes a simulated engine with as many blocks as a real one would
// have in the same memory. They take memory as they are used, and little of it.
func (s *Set) newSimulated(id string, role controlv1.Role) (engine.Engine, error) {
	config := s.config.Simulated
	config.SharedKV = s.config.ShareKV && role == controlv1.Role_ROLE_DECODE
	config.Spec, config.Profile = s.spec, s.profile
	config, err := config.For(id)
	if err != nil {
		return nil, err
	}
	config.Blocks = s.config.SimulatedBlocks(s.spec)
	return simulated.New(config)
}

// Name is the engine that runs it: CPU, CUDA or Simulated.
func (s *Set) Name() string { return s.config.Name }

// Device is what the model runs on, for people.
func (s *Set) Device() string {
	switch {
	case s.gpuWeights != nil:
		return fmt.Sprintf("%s (%s), weights in %s, KV in %s", s.config.Device, s.gpuWeights.DeviceName(), s.gpuWeights.Type(), s.config.CUDA.KV)
	case s.weights != nil:
		return fmt.Sprintf("%s (%d threads)", DeviceCPU, s.weights.Threads())
	}
	return Simulated
}

// OutsideBytes is the memory outside Go's heap that so many engines have, some of them of decode
// workers, and, for KV pages that were never used, may come to have.
func (s *Set) OutsideBytes(engines, decoding int) int64 {
	workers := int64(engines)
	switch {
	case s.gpuWeights != nil:
		return workers * cuda.HostBytes(s.spec, s.config.CUDA)
	case s.weights != nil:
		config := s.config.CPU
		config.Threads = s.weights.Threads()
		bytes := s.weights.Bytes() + workers*(config.KVBytes+cpu.WorkspaceBytes(s.spec, config))
		if s.draft != nil {
			bytes += s.draft.outsideBytes(decoding)
		}
		return bytes
	}
	return 0
}

// Free frees one engine that New made.
func (s *Set) Free(made engine.Engine) error {
	s.made = slices.DeleteFunc(s.made, func(e engine.Engine) bool { return e == made })
	return made.Close()
}

// Close frees all engines, then the weights.
func (s *Set) Close() error {
	var errs []error
	if s.health != nil {
		errs = append(errs, s.health.Close())
	}
	for _, made := range s.made {
		errs = append(errs, made.Close())
	}
	if s.draft != nil {
		errs = append(errs, s.draft.weights.Close())
	}
	if s.weights != nil {
		errs = append(errs, s.weights.Close())
	}
	if s.gpuWeights != nil {
		errs = append(errs, s.gpuWeights.Close())
	}
	return errors.Join(errs...)
}
