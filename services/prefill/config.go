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
	// StorePuts is the most prefixes that are put into block stores at a time; 0:
	// none are.
	StorePuts int
	// FetchBandwidth is how many bytes a second a block store is believed to give
	// until it was measured; 0: nothing is fetched.
	FetchBandwidth int
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.ChunkTokens, "prefill-chunk-tokens", 512, "maximum prompt tokens that a prefill worker computes in one step; a multiple of the block size")
	fs.IntVar(&c.MaxWaiting, "prefill-max-waiting", 256, "maximum prompts that wait on a prefill worker")
	fs.IntVar(&c.StorePuts, "prefill-store-puts", 2, "maximum cached prefixes that a prefill worker puts into block stores at a time, before it evicts them; 0: none")
	fs.IntVar(&c.FetchBandwidth, "prefill-fetch-bandwidth", 1_000_000_000, "assumed bandwidth of a block store until it is measured, in bytes per second; 0: fetch nothing")
}

// Validate checks ranges.
func (c *Config) Validate(blockTokens int) error {
	switch {
	case c.ChunkTokens <= 0 || c.ChunkTokens%blockTokens != 0:
		return fmt.Errorf("prefill-chunk-tokens: %d is not a positive multiple of the block size %d", c.ChunkTokens, blockTokens)
	case c.MaxWaiting <= 0:
		return fmt.Errorf("prefill-max-waiting: %d is not above 0", c.MaxWaiting)
	case c.StorePuts < 0 || c.StorePuts > 64:
		return fmt.Errorf("prefill-store-puts: %d is outside 0 to 64", c.StorePuts)
	case c.FetchBandwidth < 0:
		return fmt.Errorf("prefill-fetch-bandwidth: %d is negative", c.FetchBandwidth)
	}
	return nil
}
