package engine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Plan is what to measure.
type Plan struct {
	DType cpu.WeightType `json:"dtype"`
	KV    cpu.KVType     `json:"kv"`
	// PromptTokens is the length of the prompt that prefill computes.
	PromptTokens int `json:"prompt_tokens"`
	// DecodeSteps of Batch sequences each are one round of decode; at its start each
	// sequence has ContextTokens behind it.
	DecodeSteps   int `json:"decode_steps"`
	Batch         int `json:"batch"`
	ContextTokens int `json:"context_tokens"`
	// Rounds are prefill, decode and the limits in turn. Windows of decode take turns
	// with windows of reading.
	Rounds int `json:"rounds"`
	// LimitsFor is how long a round measures the limits, at least; with 0 some 50 ms and
	// with less memory than caches may hold. A window of decode or of reading takes a
	// fifth of it, 50 ms at most; with 0 one step, and reading the memory once.
	LimitsFor time.Duration `json:"-"`
}

// maxBatch is the most sequences, each a token of a step.
const maxBatch = cpu.DefaultMaxBatchTokens

// Validate checks what can be checked without a model; the error names the flag and
// says what to do.
func (p Plan) Validate() error {
	const most = 1 << 20
	switch {
	case p.DType.Validate() != nil:
		return fmt.Errorf("--dtype: %w", p.DType.Validate())
	case p.KV.Validate() != nil:
		return fmt.Errorf("--kv: %w", p.KV.Validate())
	case p.LimitsFor < 0 || p.LimitsFor > time.Minute:
		return fmt.Errorf("--limits: %v is outside 0 to 1m", p.LimitsFor)
	}
	return cmp.Or(
		bounds.Within("--prompt", p.PromptTokens, 1, most),
		bounds.Within("--decode", p.DecodeSteps, 1, most),
		bounds.Within("--batch", p.Batch, 1, maxBatch),
		bounds.Within("--context", p.ContextTokens, 0, most),
		bounds.Within("--rounds", p.Rounds, 1, 1000),
	)
}

// ValidateFor checks the plan for a model of that name and context.
func (p Plan) ValidateFor(name string, contextTokens int) error {
	if err := p.Validate(); err != nil {
		return err
	}
	switch {
	case p.PromptTokens > contextTokens:
		return fmt.Errorf("--prompt: %d is more than the %d tokens that %s takes", p.PromptTokens, contextTokens, name)
	case p.ContextTokens+p.DecodeSteps > contextTokens:
		return fmt.Errorf("--context and --decode: %d and %d are together more than the %d tokens that %s takes", p.ContextTokens, p.DecodeSteps, contextTokens, name)
	}
	return nil
}

// Config is the engine that the plan needs. The plan is valid for its model.
func (p Plan) Config() cpu.Config {
	return cpu.Config{
		Weights:        p.DType,
		KV:             p.KV,
		Blocks:         blocksFor(p.PromptTokens) + p.Batch*blocksFor(p.ContextTokens+p.DecodeSteps),
		BlockTokens:    cpu.DefaultBlockTokens,
		MaxBatchTokens: cpu.DefaultMaxBatchTokens,
		MaxSequences:   p.Batch,
	}
}

// longestWindow is of decode, and of reading.
const longestWindow = 50 * time.Millisecond

func (p Plan) window() time.Duration { return min(longestWindow, p.LimitsFor/5) }

// limitBytes is what the limits and the windows read, and something for everything else.
const limitBytes = 1 << 30

// Bytes is about the memory that loading the model and measuring takes.
func (p Plan) Bytes(spec model.Spec) int64 { return cpu.FootprintBytes(spec, p.Config()) + limitBytes }

func blocksFor(tokens int) int { return kvcache.BlocksFor(tokens, cpu.DefaultBlockTokens) }
