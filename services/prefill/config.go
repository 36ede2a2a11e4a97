package prefill

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Config of a prefill worker.
type Config struct {
	worker.Limits
	// StorePuts is the most prefixes that are put into block stores at a time; 0:
	// none are.
	StorePuts int
	// FetchBandwidth is how many bytes a second a block store is believed to give
	// until it was measured; 0: nothing is fetched.
	FetchBandwidth int
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	c.Limits.RegisterFlags(fs, "prefill-", "prefill", worker.DefaultPrefillChunkTokens)
	fs.IntVar(&c.StorePuts, "prefill-store-puts", offload.DefaultPuts, "maximum cached prefixes that a prefill worker puts into block stores at a time, before it evicts them; 0: none")
	fs.IntVar(&c.FetchBandwidth, "prefill-fetch-bandwidth", offload.DefaultBandwidth, "assumed bandwidth of a block store until it is measured, in bytes per second; 0: fetch nothing")
}

// Validate checks ranges.
func (c *Config) Validate(blockTokens int) error {
	if err := c.Limits.Validate("prefill-", blockTokens); err != nil {
		return err
	}
	switch {
	case c.StorePuts < 0 || c.StorePuts > 64:
		return fmt.Errorf("prefill-store-puts: %d is outside 0 to 64", c.StorePuts)
	case c.FetchBandwidth < 0:
		return fmt.Errorf("prefill-fetch-bandwidth: %d is negative", c.FetchBandwidth)
	}
	return nil
}
