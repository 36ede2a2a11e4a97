package cpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// What a zero field of Config stands for.
const (
	DefaultBlockTokens    = 32
	DefaultMaxBatchTokens = 512
	DefaultMaxSequences   = 64
)

// Order names the order of elements in a slice of a page in bf16: keys as
// [kv head][dimension/2][token][2], then values as [kv head][token/2][dimension][2].
// OrderInt8 is that of int8: keys as [kv head][dimension][token], values as
// [kv head][token][dimension], then bf16 scales of keys, then of values, as
// [kv head][token].
const (
	Order     = "k-d2t2/v-t2d2/1"
	OrderInt8 = "k-dt/v-td/s-t/1"
)

// Config sizes an engine.
type Config struct {
	// Threads limits how many of the weights' threads this engine uses; 0 uses
	// all.
	Threads int
	// Blocks is the number of KV blocks; 0 takes what fits in KVBytes.
	Blocks int
	// KVBytes is the memory for KV pages, in bytes, where Blocks is 0.
	KVBytes int64
	// BlockTokens is the size of a block: 16, 32, 64, 128 or 256 tokens; 0 is 32.
	BlockTokens int
	// MaxBatchTokens is the most tokens of a Step; 0 is 512.
	MaxBatchTokens int
	// MaxSequences is the most sequences of a Step; 0 is 64, or MaxBatchTokens if
	// that is less.
	MaxSequences int
	// KV is the type of keys and values in pages; "" is KVBF16. Engines of different
	// types pass no pages to each other.
	KV KVType
	// ISA is an instruction set for this engine; "" is the weights' own. Tests
	// compare them.
	ISA string
}

// maxBlocks is what a block id can name.
const maxBlocks = math.MaxInt32

// withDefaults fills in the zeros of what sizes the workspace.
func (c Config) withDefaults(threads int) Config {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	if c.KV == "" {
		c.KV = KVBF16
	}
	set(&c.Threads, threads)
	set(&c.BlockTokens, DefaultBlockTokens)
	set(&c.MaxBatchTokens, DefaultMaxBatchTokens)
	set(&c.MaxSequences, min(DefaultMaxSequences, c.MaxBatchTokens))
	return c
}

// limits bound the workspace of a complete c.
func (c Config) limits(spec model.Spec) kernels.Limits {
	return kernels.Limits{
		Rows: c.MaxBatchTokens, Sequences: c.MaxSequences, HeadRows: headRows,
		BlocksPerSequence: (spec.ContextTokens + c.BlockTokens - 1) / c.BlockTokens,
	}
}

// complete checks c and fills in its zeros.
func (c Config) complete(spec model.Spec, threads int) (Config, error) {
	c = c.withDefaults(threads)
	if err := c.KV.Validate(); err != nil {
		return c, fmt.Errorf("KV: %w", err)
	}
	switch {
	case c.Threads < 1 || c.Threads > threads:
		return c, fmt.Errorf("%d threads: the weights were loaded with %d", c.Threads, threads)
	case c.BlockTokens < kernels.Lanes || c.BlockTokens%kernels.Lanes != 0 || kernels.SplitTokens%c.BlockTokens != 0:
		return c, fmt.Errorf("blocks of %d tokens: use 16, 32, 64, 128 or 256", c.BlockTokens)
	case c.MaxBatchTokens < 1 || c.MaxBatchTokens > 1<<20:
		return c, fmt.Errorf("batches of %d tokens: use 1 to %d", c.MaxBatchTokens, 1<<20)
	case c.MaxSequences < 1 || c.MaxSequences > c.MaxBatchTokens:
		return c, fmt.Errorf("%d sequences in a batch of %d tokens: use 1 to %d", c.MaxSequences, c.MaxBatchTokens, c.MaxBatchTokens)
	case c.Blocks < 0 || c.KVBytes < 0:
		return c, errors.New("the number of blocks and the KV memory must not be negative")
	case c.Blocks == 0 && c.KVBytes == 0:
		return c, errors.New("no KV memory: set the number of blocks or the bytes")
	}
	page := int64(c.layout(spec, BF16).PageBytes()) // pages are as large whatever the weights are
	if c.Blocks == 0 {
		c.Blocks = int(min(c.KVBytes/page, maxBlocks))
		if c.Blocks == 0 {
			return c, fmt.Errorf("%d bytes of KV memory do not hold one block of %d bytes", c.KVBytes, page)
		}
	}
	if c.Blocks > maxBlocks || int64(c.Blocks) > math.MaxInt64/2/page {
		return c, fmt.Errorf("%d blocks of %d bytes are too many", c.Blocks, page)
	}
	return c, nil
}

func (c Config) layout(spec model.Spec, kind WeightType) kvcache.Layout {
	return kvcache.Layout{
		ModelDigest:     spec.Digest,
		ArithmeticClass: kind.ArithmeticClass(c.KV),
		Layers:          spec.Layers,
		KVHeads:         spec.KVHeads,
		HeadSize:        spec.HeadSize,
		ElementType:     string(c.KV),
		BlockTokens:     c.BlockTokens,
		Order:           c.KV.order(),
		SliceBytes:      shapeOf(spec, kind, c).SliceBytes(),
	}
}
