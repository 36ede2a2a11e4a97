package decode

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

// Config of a decode worker.
type Config struct {
	// ChunkTokens is the most prompt tokens computed in one step, for prompts that
	// are computed here: what bounds how long they hold up running sequences.
	ChunkTokens int
	// MaxWaiting is the most sequences that may wait.
	MaxWaiting int
	// StepBudget is how much longer prompts that are computed here may make a step of
	// those that decode; 0 is without a bound.
	StepBudget time.Duration
	// OutputShare is which share of the tokens that it may generate a sequence is
	// expected to generate before others have shown it, above 0 and at most 1.
	OutputShare float64
	// TransferLease is how long a reservation lives without a sign of life.
	TransferLease time.Duration
	// TransferCreditBytes is how much KV may be on its way on one stream: a sender has
	// one, or several. kvtransfer.CheckCreditBytes bounds it.
	TransferCreditBytes int
	// KVEncoding is how prefill workers are asked to send KV: "native" or "int8".
	KVEncoding string
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.ChunkTokens, "decode-chunk-tokens", 256, "maximum prompt tokens that a decode worker computes in one step; a multiple of the block size")
	fs.IntVar(&c.MaxWaiting, "decode-max-waiting", 256, "maximum sequences that wait on a decode worker")
	fs.DurationVar(&c.StepBudget, "decode-step-budget", 50*time.Millisecond, "how much a decode worker's own prompts may lengthen a step, and so the gap between tokens; 0: only --decode-chunk-tokens limits them")
	fs.Float64Var(&c.OutputShare, "decode-output-share", 1, "share of max_tokens that a decode worker reserves KV blocks for until some requests have ended, above 0 and at most 1; a lower share runs more requests at once, but may preempt some")
	fs.DurationVar(&c.TransferLease, "decode-transfer-lease", 10*time.Second, "how long a KV reservation lives without a sign of life from its sender")
	fs.IntVar(&c.TransferCreditBytes, "decode-transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "maximum KV bytes in flight to a decode worker on one connection of a prefill worker (--kv-connections)")
	fs.StringVar(&c.KVEncoding, "decode-kv-encoding", "native", "encoding in which prefill workers send KV: native (as computed) or int8 (half the bytes of bf16, but tokens may differ, and requests are marked as not reproducible)")
}

// Validate checks ranges.
func (c *Config) Validate(blockTokens int) error {
	switch {
	case c.ChunkTokens <= 0 || c.ChunkTokens%blockTokens != 0:
		return fmt.Errorf("decode-chunk-tokens: %d is not a positive multiple of the block size %d", c.ChunkTokens, blockTokens)
	case c.MaxWaiting <= 0:
		return fmt.Errorf("decode-max-waiting: %d is not above 0", c.MaxWaiting)
	case c.StepBudget < 0:
		return fmt.Errorf("decode-step-budget: %v is negative", c.StepBudget)
	case !(c.OutputShare > 0 && c.OutputShare <= 1):
		return fmt.Errorf("decode-output-share: %v is not above 0 and at most 1", c.OutputShare)
	case c.TransferLease < time.Second:
		return fmt.Errorf("decode-transfer-lease: %v is under 1s", c.TransferLease)
	}
	if err := kvtransfer.CheckCreditBytes(c.TransferCreditBytes); err != nil {
		return fmt.Errorf("decode-transfer-credit-bytes: %w", err)
	}
	_, err := c.encoding()
	return err
}

// CheckSlice checks that a chunk of KV, which holds a slice of an engine's pages at least,
// can be sent at all.
func (c *Config) CheckSlice(sliceBytes int) error {
	if chunk := max(kvtransfer.DefaultMaxChunkBytes, sliceBytes); c.TransferCreditBytes < chunk {
		return fmt.Errorf("decode-transfer-credit-bytes: %d is less than one chunk of %d bytes", c.TransferCreditBytes, chunk)
	}
	return nil
}

func (c *Config) encoding() (kvtransferv1.Encoding, error) {
	if e, is := api.Parse[kvtransferv1.Encoding](c.KVEncoding); is && e != kvtransferv1.Encoding_ENCODING_LENT {
		return e, nil
	}
	return 0, fmt.Errorf("decode-kv-encoding: %q is neither native nor int8", c.KVEncoding)
}
