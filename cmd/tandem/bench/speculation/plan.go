// Package speculation measures what speculative decoding gives: the real scheduler with the
// CPU engine, with and without draft tokens in turns.
//
// The command `tandem bench speculation` imports it. It starts no goroutines.
package speculation

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Plan is what to measure.
type Plan struct {
	DType cpu.WeightType `json:"dtype"`
	KV    cpu.KVType     `json:"kv"`
	Batch int            `json:"batch"`
	// PassageTokens is the length of what the model wrote first. A prompt is that so many times,
	// and its beginning once more: a text that repeats itself.
	PassageTokens int `json:"passage_tokens"`
	Repeats       int `json:"repeats"`
	// PassageTemperature is how it wrote that.
	PassageTemperature float32 `json:"passage_temperature"`
	// Tokens are generated after each prompt.
	Tokens int `json:"tokens"`
	// MaxDrafts is the most draft tokens of a sequence in a step.
	MaxDrafts int `json:"max_drafts"`
	// DraftModel is the directory of a model that drafts; empty: n-grams do.
	DraftModel string `json:"draft_model,omitempty"`
	// Keep is the share of draft tokens that are left as they are; others are made wrong.
	Keep float64 `json:"keep"`
	// Temperature is that of the tokens after the prompt.
	Temperature float32 `json:"temperature"`
	Rounds      int     `json:"rounds"`
	// ProcessorTime: seconds are the processor time of the one compute thread.
	ProcessorTime bool `json:"processor_time"`
}

// Validate checks what can be checked without a model; the error names the flag and says what
// to do.
func (p Plan) Validate() error {
	switch {
	case p.DType.Validate() != nil:
		return fmt.Errorf("--dtype: %w", p.DType.Validate())
	case p.KV.Validate() != nil:
		return fmt.Errorf("--kv: %w", p.KV.Validate())
	case p.DraftModel != "" && p.Keep != 1:
		return errors.New("--keep: a draft model's tokens are left as they are: leave it out, or --draft-model")
	}
	return cmp.Or(
		bounds.Within("--batch", p.Batch, 1, 256),
		bounds.Within("--passage", p.PassageTokens, 8, 1<<16),
		bounds.Within("--tokens", p.Tokens, 2, 1<<16),
		bounds.Within("--speculate-tokens", p.MaxDrafts, 1, 15),
		bounds.Within("--keep", p.Keep, 0, 1),
		bounds.Within("--temperature", p.Temperature, 0, 100),
		bounds.Within("--repeats", p.Repeats, 1, 1000),
		bounds.Within("--passage-temperature", p.PassageTemperature, 0, 100),
		bounds.Within("--rounds", p.Rounds, 1, 1000),
	)
}

// ValidateFor checks the plan for a model of that name and context.
func (p Plan) ValidateFor(name string, contextTokens int) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if n := p.promptTokens() + p.Tokens; n > contextTokens {
		return fmt.Errorf("--passage and --tokens: prompts of %d tokens and %d more are over the %d tokens that %s takes", p.promptTokens(), p.Tokens, contextTokens, name)
	}
	return nil
}

func (p Plan) promptTokens() int { return p.Repeats*p.PassageTokens + p.PassageTokens/4 }

// config is the engine that the plan needs.
func (p Plan) config() cpu.Config {
	blocks := (p.promptTokens()+p.Tokens)/cpu.DefaultBlockTokens + 2
	return cpu.Config{
		Weights: p.DType, KV: p.KV, Blocks: (p.Batch + 1) * blocks, BlockTokens: cpu.DefaultBlockTokens,
		MaxBatchTokens: max(cpu.DefaultMaxBatchTokens, p.Batch*(p.MaxDrafts+1)+cpu.DefaultBlockTokens), MaxSequences: p.Batch,
	}
}

// Bytes is about the memory that loading the model and measuring takes.
func (p Plan) Bytes(spec model.Spec) int64 { return cpu.FootprintBytes(spec, p.config()) }
