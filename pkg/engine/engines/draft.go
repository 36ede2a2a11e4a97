package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/drafting"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Draft is a draft model: a smaller one, which guesses at what the model of a Set draws.
type Draft struct {
	Dir string
	// KVMemory is the memory for its KV beside each engine; bytesize.Auto: autoDraftKV.
	KVMemory bytesize.Size
}

// autoDraftKV is what Draft.KVMemory bytesize.Auto stands for.
const autoDraftKV bytesize.Size = 256 << 20

// draft is one that is loaded.
type draft struct {
	weights *cpu.Weights
	config  cpu.Config
	logger  *slog.Logger
}

// draftConfig is of a draft model's engines.
func (c Config) draftConfig(kv bytesize.Size) cpu.Config {
	c.KVMemory, c.MaxBatchTokens = cmp.Or(kv, autoDraftKV), max(drafting.ChunkTokens, c.MaxSequences)
	return c.sized().CPU
}

// LeftBesideDraft is what a draft model beside so many engines leaves of the free memory. It refuses one
// for which that is too little. Only the CPU engine has one: another that was chosen is an error. Choose
// is called before.
func (c Config) LeftBesideDraft(spec model.Spec, kv bytesize.Size, engines int, free memory.Left) (memory.Left, error) {
	if c.Name != CPU {
		instead := c.insteadOfGPU
		if c.Name == Simulated {
			instead = "--engine " + CPU
		}
		return free, fmt.Errorf("--speculate: draft needs the CPU engine, and the %s engine runs the model: use --speculate off, or %s", c.Name, instead)
	}
	config := c.draftConfig(kv)
	if page := int64(spec.Layers) * int64(cpu.SliceBytes(spec, config)); config.KVBytes < page {
		return free, fmt.Errorf("--draft-kv-memory: %s does not hold one block of %d tokens, which takes %d bytes: pass more", bytesize.Text(config.KVBytes), c.BlockTokens, page)
	}
	fixed := cpu.WeightBytes(spec, config.Weights) + int64(engines)*cpu.WorkspaceBytes(spec, config)
	most := (free.Bytes - memory.IdleProcessBytes - fixed) / int64(engines)
	switch {
	case most <= 0:
		return free, fmt.Errorf("--draft-model: %s does not fit: its weights and computing take %s, but the process may use only %s (%s): use a smaller one, or --speculate off",
			spec.Name, bytesize.Text(fixed), bytesize.Text(free.Bytes), free.By)
	case config.KVBytes > most:
		return free, fmt.Errorf("--draft-kv-memory: %s for each of %d decode workers does not fit: the process may use only %s (%s), and the draft model's weights and computing take %s of them: pass less",
			bytesize.Text(config.KVBytes), engines, bytesize.Text(free.Bytes), free.By, bytesize.Text(fixed))
	}
	takes := fixed + int64(engines)*config.KVBytes
	free.Bytes -= takes
	free.By += fmt.Sprintf(", without %s for the draft model, where a smaller --draft-kv-memory leaves more", bytesize.Text(takes))
	return free, nil
}

// LoadDraft loads a draft model, which New puts beside the engines of decode workers from then on.
// Its weights have the type of the model's, and its threads are the model's.
func (s *Set) LoadDraft(ctx context.Context, d Draft, logger *slog.Logger) error {
	if s.weights == nil {
		return errors.New("a draft model needs the CPU engine")
	}
	config := s.config.draftConfig(d.KVMemory)
	config.Beside, config.Threads = s.weights, s.weights.Threads()
	config.Warn = func(err error) { logger.Warn("cannot use the weight cache", slog.Any("error", err)) }
	m, err := model.OpenContext(ctx, d.Dir, model.Options{})
	if err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	weights, err := cpu.Load(ctx, m, config)
	if err := errors.Join(err, m.Close()); err != nil {
		return fmt.Errorf("draft model: %w", err)
	}
	s.draft = &draft{weights: weights, config: config, logger: logger}
	logger.Info("draft model loaded", slog.String("model", weights.Spec().Name), slog.Int64("bytes", weights.Bytes()))
	return nil
}

func (d *draft) outsideBytes(engines int) int64 {
	return d.weights.Bytes() + int64(engines)*(d.config.KVBytes+cpu.WorkspaceBytes(d.weights.Spec(), d.config))
}

// beside puts an engine of the draft model beside one of the model.
func (d *draft) beside(target engine.Engine) (engine.Engine, error) {
	made, err := d.weights.NewEngine(d.config)
	if err != nil {
		return nil, fmt.Errorf("draft model: %w", err)
	}
	e, err := drafting.New(target, made, d.logger)
	if err != nil {
		return nil, errors.Join(err, made.Close())
	}
	return e, nil
}
