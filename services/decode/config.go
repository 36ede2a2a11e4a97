package decode

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Config of a decode worker.
type Config struct {
	worker.Limits
	worker.Speculation
	// DraftModel is the directory of the model that drafts with worker.SpeculateDraft, and DraftKVMemory
	// the memory for its KV in each worker; bytesize.Auto: 256 MiB.
	DraftModel    string
	DraftKVMemory bytesize.Size
	// TransferLease is how long a reservation lives without a sign of life.
	TransferLease time.Duration
	// TransferIdle is how long a sender may only renew a reservation, without KV.
	TransferIdle time.Duration
	// ReserveShare is the share of the blocks that one tenant's transfers, or one router's, may
	// hold before they are committed, above 0 and at most 1.
	ReserveShare float64
	// TransferCreditBytes is how much KV may be on its way on one stream: a sender has
	// one, or several. kvtransfer.CheckCreditBytes bounds it.
	TransferCreditBytes int
	// KVEncoding is how prefill workers are asked to send KV: "native" or "int8".
	KVEncoding string
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	c.Limits.RegisterFlags(fs, "decode-", "decode", worker.DefaultDecodeChunkTokens)
	fs.DurationVar(&c.TransferLease, "decode-transfer-lease", kvtransfer.DefaultLease, "how long a KV reservation lives without a sign of life from its sender")
	fs.DurationVar(&c.TransferIdle, "decode-transfer-idle", kvtransfer.DefaultMaxIdle, "how long a sender may only renew a KV reservation, without sending any KV")
	fs.Float64Var(&c.ReserveShare, "decode-reserve-share", 0.8, "share of a decode worker's KV blocks that transfers of one tenant, or of one router, may hold before they are complete, above 0 and at most 1; a single transfer is always allowed")
	fs.IntVar(&c.TransferCreditBytes, "decode-transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "maximum KV bytes in flight to a decode worker on one connection of a prefill worker (--kv-connections)")
	c.Speculation.RegisterFlags(fs)
	fs.StringVar(&c.DraftModel, "draft-model", "", "directory of a smaller model with the tokenizer of the model, which drafts its next tokens with --speculate draft")
	fs.Var(&c.DraftKVMemory, "draft-kv-memory", "memory for the KV cache of the draft model in each decode worker; auto: 256MiB. Sequences that do not fit have no draft tokens")
	fs.StringVar(&c.KVEncoding, "decode-kv-encoding", "native", "encoding in which prefill workers send KV: native (as computed) or int8 (half the bytes of bf16, but tokens may differ, and requests are marked as not reproducible)")
}

// Validate checks ranges.
func (c *Config) Validate(blockTokens int) error {
	if err := c.Limits.Validate("decode-", blockTokens); err != nil {
		return err
	}
	if c.TransferLease < time.Second {
		return fmt.Errorf("decode-transfer-lease: %v is under 1s", c.TransferLease)
	}
	if c.TransferIdle < c.TransferLease {
		return fmt.Errorf("decode-transfer-idle: %v is less than decode-transfer-lease, %v", c.TransferIdle, c.TransferLease)
	}
	if !(c.ReserveShare > 0 && c.ReserveShare <= 1) {
		return fmt.Errorf("decode-reserve-share: %v is not above 0 and at most 1", c.ReserveShare)
	}
	if err := kvtransfer.CheckCreditBytes(c.TransferCreditBytes); err != nil {
		return fmt.Errorf("decode-transfer-credit-bytes: %w", err)
	}
	if err := c.Speculation.Validate(); err != nil {
		return err
	}
	switch drafts := c.Speculate == worker.SpeculateDraft; {
	case drafts && c.DraftModel == "":
		return errors.New("draft-model: is needed for --speculate draft: pass the directory of a model with the same tokenizer")
	case !drafts && c.DraftModel != "":
		return errors.New("draft-model: drafts only with --speculate draft: pass both or none")
	case c.DraftKVMemory < 0:
		return fmt.Errorf("draft-kv-memory: %v is negative", c.DraftKVMemory.String())
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
	if e, is := api.Parse[kvtransferv1.Encoding](c.KVEncoding); is && e != kvtransferv1.Encoding_ENCODING_LENT && e != kvtransferv1.Encoding_ENCODING_SHARED {
		return e, nil
	}
	return 0, fmt.Errorf("decode-kv-encoding: %q is neither native nor int8", c.KVEncoding)
}
