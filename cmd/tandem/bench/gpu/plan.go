package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Plan is what to measure.
type Plan struct {
	// PromptTokens is the length of the prompt that prefill computes, and whose pages are
	// copied; ChunkTokens is how much of it a step computes at most.
	PromptTokens int `json:"prompt_tokens"`
	ChunkTokens  int `json:"chunk_tokens"`
	// Batches are how many sequences decode at a time, each with each of ContextTokens
	// behind every sequence when a round begins, for DecodeSteps.
	Batches       []int `json:"batches"`
	ContextTokens []int `json:"contexts_tokens"`
	DecodeSteps   int   `json:"decode_steps"`
	// Rounds are limits, prefill, decode and copies in turn.
	Rounds int `json:"rounds"`
	// NoGraphs launches every kernel of a decode step by itself.
	NoGraphs bool          `json:"no_graphs"`
	Products cuda.Products `json:"products"`
	// Weights and KV are what the layers' weights, and keys and values, are kept as.
	Weights cuda.WeightType `json:"weights"`
	KV      cuda.KVType     `json:"kv"`
}

const mostTokens = 1 << 20

// Validate checks what can be checked without a model; the error names the flag and
// says what to do.
func (p Plan) Validate() error {
	switch {
	case len(p.Batches) == 0:
		return errors.New("--batch: pass at least one value")
	case len(p.ContextTokens) == 0:
		return errors.New("--context: pass at least one value")
	}
	return cmp.Or(
		bounds.Within("--prompt", p.PromptTokens, 1, mostTokens),
		bounds.Within("--chunk", p.ChunkTokens, 1, 1<<16),
		bounds.Within("--decode", p.DecodeSteps, 1, mostTokens),
		bounds.Within("--rounds", p.Rounds, 1, 1000),
		bounds.Within("--batch", slices.Min(p.Batches), 1, 4096),
		bounds.Within("--batch", slices.Max(p.Batches), 1, 4096),
		bounds.Within("--context", slices.Min(p.ContextTokens), 0, mostTokens),
		bounds.Within("--context", slices.Max(p.ContextTokens), 0, mostTokens),
		p.ValidateEngine(),
	)
}

// ValidateEngine checks what of the engine does not depend on what is measured with it.
func (p Plan) ValidateEngine() error {
	switch {
	case p.Products != cuda.Own && p.Products != cuda.CublasLt:
		return fmt.Errorf("--cuda-products: %q is neither %s nor %s", p.Products, cuda.Own, cuda.CublasLt)
	case p.Weights.Validate() != nil:
		return fmt.Errorf("--cuda-weights: %w", p.Weights.Validate())
	case p.KV.Validate() != nil:
		return fmt.Errorf("--cuda-kv: %w", p.KV.Validate())
	case p.Weights != cuda.BF16 && p.Products == cuda.CublasLt:
		return fmt.Errorf("--cuda-weights: cuBLASLt supports only %s: leave out --cuda-products %s or --cuda-weights", cuda.BF16, p.Products)
	}
	return nil
}

// ValidateFor checks the plan for a model of that name and context.
func (p Plan) ValidateFor(name string, contextTokens int) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.PromptTokens > contextTokens {
		return fmt.Errorf("--prompt: %d is more than the %d tokens that %s takes", p.PromptTokens, contextTokens, name)
	}
	for _, context := range p.ContextTokens {
		if context+p.stepsAtMost() > contextTokens {
			return fmt.Errorf("--context and --decode: %d and %d are together more than the %d tokens that %s takes", context, p.stepsAtMost(), contextTokens, name)
		}
	}
	return nil
}

// stepsAtMost is how far a sequence decodes.
func (p Plan) stepsAtMost() int { return max(p.DecodeSteps, warmSteps) }

// place is one batch with one context, in blocks of its own.
type place struct {
	batch, context int
	first, each    int // blocks: where they begin, and of a sequence
}

// places are all batches with all contexts, behind the prompt's blocks.
func (p Plan) places() (all []place, blocks int) {
	blocks = blocksFor(p.PromptTokens)
	for _, context := range p.ContextTokens {
		for _, batch := range p.Batches {
			each := blocksFor(context + p.stepsAtMost())
			all = append(all, place{batch, context, blocks, each})
			blocks += batch * each
		}
	}
	return all, blocks
}

// Config is the engine that the plan needs.
func (p Plan) Config() cuda.Config {
	_, blocks := p.places()
	most := slices.Max(p.Batches)
	return cuda.Config{
		Blocks: blocks, BlockTokens: cuda.DefaultBlockTokens,
		MaxBatchTokens: max(p.ChunkTokens, most), MaxSequences: most, NoGraphs: p.NoGraphs, Products: p.Products, KV: p.KV,
	}
}

func blocksFor(tokens int) int { return kvcache.BlocksFor(tokens, cuda.DefaultBlockTokens) }
