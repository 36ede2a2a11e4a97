// Package scheduler measures what a worker's scheduler does to requests: long and short
// prompts on one worker, under one policy after the other. It measures times to first
// tokens, gaps between tokens, how long those that decode are stalled by the prompts of
// others, and what is computed again after preemptions.
//
// Virtual drives the scheduler alone, on virtual time, with steps that take what a
// profile says: the same seed gives the same figures, but for the scheduler's own time.
// Real drives worker.Driver and the CPU engine, in real time.
//
// The command line imports it. Real starts one goroutine for each policy's run and
// waits for it; it takes the weights from its caller and closes the engines that it
// opens.
package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// The scenarios.
const (
	// Mix is a stream of long and short prompts.
	Mix = "mix"
	// LongPrompt is one long prompt that arrives while others decode.
	LongPrompt = "long-prompt"
)

// Plan is what to measure.
type Plan struct {
	Scenario string `json:"scenario"`
	// Seed of arrivals, lengths and tokens.
	Seed uint64 `json:"seed"`

	// Requests of Mix come at Rate a second, by a Poisson process. LongShare of them
	// have long prompts. OutputTokens is the mean of what they generate, where at most
	// MaxTokens are allowed. Lengths are drawn evenly from half of the mean to one and a
	// half times.
	Requests     int     `json:"requests,omitempty"`
	Rate         float64 `json:"rate,omitempty"`
	LongShare    float64 `json:"long_share,omitempty"`
	OutputTokens int     `json:"output_tokens,omitempty"`
	MaxTokens    int     `json:"max_tokens,omitempty"`
	// Decodes of LongPrompt decode, each after a prompt of ShortTokens. The prompt of
	// LongTokens comes after BeforeSteps steps of all of them.
	Decodes     int `json:"decodes,omitempty"`
	BeforeSteps int `json:"before_steps,omitempty"`
	// ShortTokens and LongTokens are of prompts: of Mix the means, of LongPrompt exact.
	ShortTokens int `json:"short_prompt_tokens"`
	LongTokens  int `json:"long_prompt_tokens"`

	// Blocks of BlockTokens tokens each are the KV memory; with 0 LongPrompt has what it
	// needs.
	Blocks      int `json:"blocks"`
	BlockTokens int `json:"block_tokens"`
	// BatchTokens and Sequences bound a step.
	BatchTokens int `json:"batch_tokens"`
	Sequences   int `json:"sequences"`

	// Policies are run one after the other, with the same requests.
	Policies []Policy `json:"-"`
}

// Policy is what of scheduler.Config is compared.
type Policy struct {
	// StepBudget is how much longer prompts may make a step of those that decode; 0 is
	// without a bound.
	StepBudget  time.Duration
	ChunkTokens int
	OutputShare float64
}

// MaxPolicies bounds the policies of a plan.
const MaxPolicies = 32

const (
	mostRequests = 1 << 20
	mostTokens   = 1 << 20
	mostSteps    = 1 << 20
	mostBlocks   = 1 << 22
)

// Validate names the first flag that is wrong, and says what to do.
func (p Plan) Validate() error {
	if err := p.validateScenario(); err != nil {
		return err
	}
	if err := cmp.Or(
		bounds.Within("--short-prompt", p.ShortTokens, 1, mostTokens),
		bounds.Within("--long-prompt", p.LongTokens, 1, mostTokens),
		bounds.Within("--block-tokens", p.BlockTokens, 1, 1<<16),
	); err != nil {
		return err
	}
	switch {
	case p.BatchTokens < p.BlockTokens || p.BatchTokens > mostTokens:
		return fmt.Errorf("--batch-tokens: %d is outside %d (one block) to %d", p.BatchTokens, p.BlockTokens, mostTokens)
	case p.Sequences < 1 || p.Sequences > p.BatchTokens:
		return fmt.Errorf("--sequences: %d is outside 1 to %d (--batch-tokens)", p.Sequences, p.BatchTokens)
	case p.leastBlocks() > mostBlocks:
		return fmt.Errorf("--long-prompt, --short-prompt, --decodes, --before and --max-tokens: together they need %d blocks, more than %d: lower them", p.leastBlocks(), mostBlocks)
	case p.Blocks > mostBlocks || p.blocks() < p.leastBlocks():
		return fmt.Errorf("--blocks: %d is outside %d (the longest request) to %d", p.Blocks, p.leastBlocks(), mostBlocks)
	}
	if n := len(p.Policies); n < 1 || n > MaxPolicies {
		return fmt.Errorf("--step-budget, --chunk-tokens and --output-share: together %d policies: give 1 to %d", n, MaxPolicies)
	}
	for _, policy := range p.Policies {
		switch {
		case policy.StepBudget < 0 || policy.StepBudget > time.Hour:
			return fmt.Errorf("--step-budget: %v is outside 0s (none) to 1h", policy.StepBudget)
		case policy.ChunkTokens < p.BlockTokens || policy.ChunkTokens%p.BlockTokens != 0 || policy.ChunkTokens > mostTokens:
			return fmt.Errorf("--chunk-tokens: %d is not a multiple of the block size, %d, up to %d", policy.ChunkTokens, p.BlockTokens, mostTokens)
		case !(policy.OutputShare > 0 && policy.OutputShare <= 1):
			return fmt.Errorf("--output-share: %v is not above 0 and at most 1", policy.OutputShare)
		}
	}
	return nil
}

func (p Plan) validateScenario() error {
	switch {
	case p.Scenario == LongPrompt:
		return cmp.Or(
			bounds.Within("--decodes", p.Decodes, 1, p.Sequences-1, ", one less than --sequences"),
			bounds.Within("--before", p.BeforeSteps, 1, mostSteps),
		)
	case p.Scenario != Mix:
		return fmt.Errorf("--scenario: %q is not a scenario: choose %s or %s", p.Scenario, Mix, LongPrompt)
	case !(p.Rate > 0 && p.Rate <= 1e6):
		return fmt.Errorf("--rate: %v is not above 0 and at most 1e6", p.Rate)
	}
	if err := cmp.Or(
		bounds.Within("--requests", p.Requests, 1, mostRequests),
		bounds.Within("--long-share", p.LongShare, 0, 1),
		bounds.Within("--output", p.OutputTokens, 1, mostTokens),
	); err != nil {
		return err
	}
	if p.MaxTokens < most(p.OutputTokens) || p.MaxTokens > mostTokens {
		return fmt.Errorf("--max-tokens: %d is outside %d (the longest output) to %d", p.MaxTokens, most(p.OutputTokens), mostTokens)
	}
	return nil
}

// ContextTokens is the longest that a sequence may become.
func (p Plan) ContextTokens() int {
	if p.Scenario == LongPrompt {
		return max(p.LongTokens+1, p.ShortTokens+p.decodeTokens())
	}
	prompt := most(p.ShortTokens)
	if p.LongShare > 0 {
		prompt = max(prompt, most(p.LongTokens))
	}
	return prompt + p.MaxTokens
}

// decodeTokens is what those that decode may generate in LongPrompt: as many as there
// are steps until the long prompt is computed, of which each computes a block at least.
func (p Plan) decodeTokens() int {
	return p.BeforeSteps + p.blocksFor(p.LongTokens) + p.Decodes*p.blocksFor(p.ShortTokens) + 16
}

// leastBlocks are those that the longest request can come to need, of LongPrompt all.
func (p Plan) leastBlocks() int {
	if p.Scenario == LongPrompt {
		return p.Decodes*p.blocksFor(p.ShortTokens+p.decodeTokens()) + p.blocksFor(p.LongTokens+1)
	}
	return p.blocksFor(p.ContextTokens())
}

func (p Plan) blocks() int {
	if p.Blocks == 0 && p.Scenario == LongPrompt {
		return p.leastBlocks()
	}
	return p.Blocks
}

func (p Plan) blocksFor(tokens int) int { return kvcache.BlocksFor(tokens, p.BlockTokens) }

// config is the scheduler's of a policy, without its pool.
func (p Plan) config(policy Policy) scheduler.Config {
	return scheduler.Config{
		BlockTokens: p.BlockTokens, ContextTokens: p.ContextTokens(), MaxBatchTokens: p.BatchTokens,
		MaxSequences: p.Sequences, ChunkTokens: policy.ChunkTokens, StepBudget: policy.StepBudget,
		MaxWaiting: p.waiting(), OutputShare: policy.OutputShare,
	}
}

// waiting is how many requests may wait: all, so that none is refused.
func (p Plan) waiting() int { return max(p.Requests, p.Decodes+1) }

// least and most are the bounds of lengths with that mean.
func least(mean int) int { return max(mean/2, 1) }
func most(mean int) int  { return int(min(int64(mean)+int64(mean)/2, math.MaxInt32)) }
