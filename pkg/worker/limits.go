package worker

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Limits are what operators choose of a worker. Their flags differ by its role.
type Limits struct {
	// ChunkTokens is the maximum number of prompt tokens computed in one step. On a decode
	// worker it bounds how long prompts that are computed there hold up running sequences.
	ChunkTokens int
	// MaxWaiting is the maximum number of sequences that wait.
	MaxWaiting int
	// StepBudget is how much longer prompts that a decode worker computes may make a step of
	// those that decode; 0 is without a bound.
	StepBudget time.Duration
	// OutputShare is which share of the tokens that it may generate a sequence of a decode
	// worker is expected to generate before others have shown it, above 0 and at most 1.
	OutputShare float64
}

// RegisterPrefillFlags adds the flags of a prefill worker, each name after prefix, with
// the defaults.
func (l *Limits) RegisterPrefillFlags(fs *pflag.FlagSet, prefix string) {
	fs.IntVar(&l.ChunkTokens, prefix+"chunk-tokens", 512, "maximum prompt tokens that a prefill worker computes in one step; a multiple of the block size")
	fs.IntVar(&l.MaxWaiting, prefix+"max-waiting", 256, "maximum prompts that wait on a prefill worker")
}

// RegisterDecodeFlags adds the flags of a decode worker, each name after prefix, with the
// defaults.
func (l *Limits) RegisterDecodeFlags(fs *pflag.FlagSet, prefix string) {
	fs.IntVar(&l.ChunkTokens, prefix+"chunk-tokens", 256, "maximum prompt tokens that a decode worker computes in one step; a multiple of the block size")
	fs.IntVar(&l.MaxWaiting, prefix+"max-waiting", 256, "maximum sequences that wait on a decode worker")
	fs.DurationVar(&l.StepBudget, prefix+"step-budget", 50*time.Millisecond, "how much a decode worker's own prompts may lengthen a step, and so the gap between tokens; 0: only --"+prefix+"chunk-tokens limits them")
	fs.Float64Var(&l.OutputShare, prefix+"output-share", 1, "share of max_tokens that a decode worker reserves KV blocks for until some requests have ended, above 0 and at most 1; a lower share runs more requests at once, but may preempt some")
}

// ValidatePrefill checks what RegisterPrefillFlags registers.
func (l *Limits) ValidatePrefill(prefix string, blockTokens int) error {
	switch {
	case l.ChunkTokens <= 0 || l.ChunkTokens%blockTokens != 0:
		return fmt.Errorf("%schunk-tokens: %d is not a positive multiple of the block size %d", prefix, l.ChunkTokens, blockTokens)
	case l.MaxWaiting <= 0:
		return fmt.Errorf("%smax-waiting: %d is not above 0", prefix, l.MaxWaiting)
	}
	return nil
}

// ValidateDecode checks what RegisterDecodeFlags registers.
func (l *Limits) ValidateDecode(prefix string, blockTokens int) error {
	if err := l.ValidatePrefill(prefix, blockTokens); err != nil {
		return err
	}
	switch {
	case l.StepBudget < 0:
		return fmt.Errorf("%sstep-budget: %v is negative", prefix, l.StepBudget)
	case !(l.OutputShare > 0 && l.OutputShare <= 1):
		return fmt.Errorf("%soutput-share: %v is not above 0 and at most 1", prefix, l.OutputShare)
	}
	return nil
}
