package prefill

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config of a prefill worker.
type Config struct {
	// ChunkTokens is the most prompt tokens computed in one step.
	ChunkTokens int
	// MaxWaiting is the most prompts that may wait.
	MaxWaiting int
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.ChunkTokens, "prefill-chunk-tokens", 512, "most prompt tokens that a prefill worker computes in one step; a multiple of the block size")
	fs.IntVar(&c.MaxWaiting, "prefill-max-waiting", 256, "most prompts that may wait on a prefill worker")
}

// Validate checks ranges.
func (c *Config) Validate(blockTokens int) error {
	switch {
	case c.ChunkTokens <= 0 || c.ChunkTokens%blockTokens != 0:
		return fmt.Errorf("prefill-chunk-tokens: %d is not a positive multiple of the block size %d", c.ChunkTokens, blockTokens)
	case c.MaxWaiting <= 0:
		return fmt.Errorf("prefill-max-waiting: %d is not above 0", c.MaxWaiting)
	}
	return nil
}
