package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Config is what a scheduler works with.
type Config struct {
	// Pool of the worker's blocks. It belongs to the scheduler from New on.
	Pool *kvcache.Pool
	// BlockTokens is the number of tokens in a block: the pool's.
	BlockTokens int
	// ContextTokens is the most tokens of prompt and completion together.
	ContextTokens int
	// MaxBatchTokens is the most tokens of one step, at least BlockTokens.
	MaxBatchTokens int
	// MaxSequences is the most sequences that run at a time. Places says when fewer do.
	MaxSequences int
	// ChunkTokens is the most tokens of one prompt in a step: a multiple of BlockTokens. A step
	// has no more of several prompts either, until it is known what steps take, and where others
	// decode without a StepBudget.
	ChunkTokens int
	// StepBudget is how much longer a step may take for the prompts in it than with
	// those that decode alone; 0 is without a bound. It is kept in 99 of 100
	// steps with prompts, by what steps took so far, and a block of a prompt is
	// computed in any case. A new scheduler uses four fifths of it.
	StepBudget time.Duration
	// MaxWaiting is the most requests that wait while all places are taken. As many more may as
	// there are places left, so that requests that come together are not refused.
	MaxWaiting int
	// MaxOvertakes is how many later requests may be taken before a waiting one, and may
	// join the batch before one whose KV has arrived; 0 means 64.
	MaxOvertakes int
	// OutputShare is which share of the tokens that it may generate a sequence is
	// expected to generate until some have ended, above 0 and at most 1; 0 means 1.
	OutputShare float64
	// MaxDrafts is the most drafts of next tokens that a sequence which decodes has in a step
	// (speculative decoding); 0: none. The engine must verify as many.
	MaxDrafts int
	// EngineDrafts: the engine makes them (engine.Sample.DraftRequest). Else they are what a sequence's
	// output constraint forces (StepDone.Forced), and what stood behind its last tokens before.
	EngineDrafts bool
}

// defaultMaxOvertakes is the bound that Config.MaxOvertakes = 0 stands for.
const defaultMaxOvertakes = 64

// maxSkippedSteps is how many steps a running prompt may get nothing of before
// it comes first.
const maxSkippedSteps = 16

// Places is how many sequences run at a time, by Config's MaxSequences, MaxBatchTokens and BlockTokens:
// a block of a prompt always fits beside all who decode.
func Places(maxSequences, maxBatchTokens, blockTokens int) int {
	return min(maxSequences, maxBatchTokens-blockTokens+1)
}

// Validate names the first thing wrong.
func (c Config) Validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("scheduler: a pool is needed")
	case c.BlockTokens != c.Pool.BlockTokens():
		return fmt.Errorf("scheduler: block size %d is not the pool's, %d", c.BlockTokens, c.Pool.BlockTokens())
	case c.ContextTokens < 2:
		return fmt.Errorf("scheduler: a context of %d tokens holds no prompt and completion; give at least 2", c.ContextTokens)
	case c.MaxBatchTokens < c.BlockTokens:
		return fmt.Errorf("scheduler: a batch of %d tokens holds no block of %d; give at least that", c.MaxBatchTokens, c.BlockTokens)
	case c.MaxSequences < 1:
		return fmt.Errorf("scheduler: %d sequences at a time; give at least 1", c.MaxSequences)
	case c.ChunkTokens < c.BlockTokens || c.ChunkTokens%c.BlockTokens != 0:
		return fmt.Errorf("scheduler: chunks of %d tokens are not a multiple of the block size %d", c.ChunkTokens, c.BlockTokens)
	case c.StepBudget < 0:
		return fmt.Errorf("scheduler: a step budget of %v; give 0 for none, or more", c.StepBudget)
	case c.MaxWaiting < 1:
		return fmt.Errorf("scheduler: a queue of %d; give at least 1", c.MaxWaiting)
	case c.MaxOvertakes < 0:
		return fmt.Errorf("scheduler: %d overtakes; give 0 for the default or more", c.MaxOvertakes)
	case c.MaxDrafts < 0:
		return fmt.Errorf("scheduler: %d drafts; give 0 for none, or more", c.MaxDrafts)
	case !(c.OutputShare >= 0 && c.OutputShare <= 1):
		return fmt.Errorf("scheduler: an output share of %v; give 0 for the default, or more than 0 and at most 1", c.OutputShare)
	}
	return nil
}
