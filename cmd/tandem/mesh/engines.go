package mesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Progress is told how far a stage of loading is.
type Progress func(stage string, done, total int64)

// engines makes the engines of one process: they share one copy of the weights
// and one compute pool.
type engines struct {
	options EngineOptions
	dir     string
	spec    model.Spec
	weights *cpu.Weights // nil for the simulated engine
	made    []engine.Engine
}

// loadEngines loads the model, once for the process.
func loadEngines(ctx context.Context, o Options, progress Progress) (*engines, error) {
	dir, err := modeldir.Find(o.Model)
	if err != nil {
		return nil, err
	}
	if o.Engine.Name == EngineSimulated {
		e, err := loadSpec(o, progress)
		if err == nil {
			e.spec.Digest = simulated.Digest(e.spec)
		}
		return e, err
	}
	m, err := model.OpenContext(ctx, dir, model.Options{Name: o.ModelName, Progress: progress})
	if err != nil {
		return nil, err
	}
	weights, err := cpu.Load(m, o.Engine.Threads, "", func(done, total int64) { progress("packing weights", done, total) })
	// The engine has packed what it needs; the mapped files are not read again.
	err = errors.Join(err, m.Close())
	if err != nil {
		return nil, err
	}
	return &engines{options: o.Engine, dir: dir, spec: m.Spec(), weights: weights}, nil
}

// loadSpec loads the model's description alone: all that a router needs, and a
// simulated engine. Its Digest is empty: that of the weights is known to those
// who read them.
func loadSpec(o Options, progress Progress) (*engines, error) {
	dir, err := modeldir.Find(o.Model)
	if err != nil {
		return nil, err
	}
	spec, err := model.LoadSpec(dir, model.Options{Name: o.ModelName, Progress: progress})
	if err != nil {
		return nil, err
	}
	return &engines{options: o.Engine, dir: dir, spec: spec}, nil
}

// add makes one more engine, with KV pages of its own.
func (e *engines) add() (engine.Engine, error) {
	made, err := e.newEngine()
	if err != nil {
		return nil, err
	}
	e.made = append(e.made, made)
	return made, nil
}

// simulatedBlocks bounds the blocks of a simulated engine, which models the KV
// memory that was asked for by number of blocks, not by bytes.
const simulatedBlocks = 4096

func (e *engines) newEngine() (engine.Engine, error) {
	o := e.options
	if e.weights == nil {
		return simulated.New(simulated.Config{
			Spec: e.spec, Blocks: simulatedBlocks, BlockTokens: o.BlockTokens,
			MaxBatchTokens: o.MaxBatchTokens, MaxSequences: o.MaxSequences, StepTime: o.Simulated,
		})
	}
	made, err := e.weights.NewEngine(cpu.Config{
		KVBytes: int64(o.KVMemory), BlockTokens: o.BlockTokens, MaxBatchTokens: o.MaxBatchTokens, MaxSequences: o.MaxSequences,
	})
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	return made, nil
}

// close frees all engines, then the weights.
func (e *engines) close() error {
	var errs []error
	for _, made := range e.made {
		errs = append(errs, made.Close())
	}
	if e.weights != nil {
		errs = append(errs, e.weights.Close())
	}
	return errors.Join(errs...)
}
