package worker

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Limits are what operators choose of a worker. Their flags differ by its role.
type Limits struct {
	// ChunkTokens is the maximum number of tokens of one prompt computed in one step. It bounds how
	// long prompts hold up sequences that decode on the same worker.
	ChunkTokens int
	// MaxWaiting is the maximum number of sequences that wait beyond the free places. A prefill
	// worker has as many more whose transfer is not open yet or whose KV it fetches.
	MaxWaiting int
	// StepBudget is how much longer prompts may make a step of sequences that decode; 0 is
	// without a bound.
	StepBudget time.Duration
	// OutputShare is which share of the tokens that it may generate a sequence is expected to
	// generate before others have shown it, above 0 and at most 1.
	OutputShare float64
}

// Tokens of prompts in a step, unless somebody says otherwise: few where the next token of
// others waits for the step.
const (
	DefaultPrefillChunkTokens = 512
	DefaultDecodeChunkTokens  = 256
)

// RegisterFlags adds the flags of a worker of a role, each name after prefix, with defaults
// that work.
func (l *Limits) RegisterFlags(fs *pflag.FlagSet, prefix, role string, chunkTokens int) {
	fs.IntVar(&l.ChunkTokens, prefix+"chunk-tokens", chunkTokens, "maximum tokens of one prompt that a "+role+" worker computes in one step; a multiple of the block size")
	fs.IntVar(&l.MaxWaiting, prefix+"max-waiting", 256, "maximum sequences that wait on a "+role+" worker beyond its free places")
	fs.DurationVar(&l.StepBudget, prefix+"step-budget", 50*time.Millisecond, "how much prompts may lengthen a step of sequences that a "+role+" worker decodes, and so the gap between tokens; 0: only --"+prefix+"chunk-tokens limits them")
	fs.Float64Var(&l.OutputShare, prefix+"output-share", 1, "share of max_tokens that a "+role+" worker reserves KV blocks for until some requests have ended, above 0 and at most 1; a lower share runs more requests at once, but may preempt some")
}

// Validate checks what RegisterFlags registers.
func (l *Limits) Validate(prefix string, blockTokens int) error {
	switch {
	case l.ChunkTokens <= 0 || l.ChunkTokens%blockTokens != 0:
		return fmt.Errorf("%schunk-tokens: %d is not a positive multiple of the block size %d", prefix, l.ChunkTokens, blockTokens)
	case l.MaxWaiting <= 0:
		return fmt.Errorf("%smax-waiting: %d is not above 0", prefix, l.MaxWaiting)
	case l.StepBudget < 0:
		return fmt.Errorf("%sstep-budget: %v is negative", prefix, l.StepBudget)
	case !(l.OutputShare > 0 && l.OutputShare <= 1):
		return fmt.Errorf("%soutput-share: %v is not above 0 and at most 1", prefix, l.OutputShare)
	}
	return nil
}
