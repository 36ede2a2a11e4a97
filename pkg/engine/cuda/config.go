package cuda

import (
	"errors"
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// What a zero field of Config stands for.
const (
	DefaultBlockTokens    = 32
	DefaultMaxBatchTokens = 2048
	DefaultMaxSequences   = 64
)

// MostBatchTokens is the most tokens that a Step may be made for.
const MostBatchTokens = 1 << 16

// Products says what computes products of many rows.
type Products string

// The products. With Own a row's results depend on nothing but the row. CublasLt is faster
// for prompts; docs/decisions/0016-cublaslt-products.md says what it costs.
const (
	Own      Products = "own"
	CublasLt Products = "cublaslt"
)

// FindCublasLt says why products cannot be computed by the cuBLASLt library that is at a
// path, as in Config.CublasLt; nil if they can.
func FindCublasLt(path string) error {
	_, err := blaslt.Open(path)
	return err
}

// Order names the order of elements in a slice of a page: keys as [kv head][token]
// [dimension], then values likewise.
const Order = "k-td/v-td/1"

// OrderFP8 is that of KVFP8: codes of keys as [kv head][token][dimension], with dimensions
// 0, 2, 1, 3 of each four, values likewise; then a byte for each scale of keys as [kv head]
// [token], which is the exponent of a float32, then of values.
const OrderFP8 = "k-td4/v-td4/s-t/1"

// Config sizes an engine.
type Config struct {
	// Blocks is the number of KV blocks; 0 takes what fits in KVBytes.
	Blocks int
	// KVBytes is the device memory for KV pages, in bytes, where Blocks is 0.
	KVBytes int64
	// BlockTokens is the size of a block: 16, 32, 64, 128 or 256 tokens; 0 is 32.
	BlockTokens int
	// MaxBatchTokens is the most tokens of a Step; 0 is 2048.
	MaxBatchTokens int
	// MaxSequences is the most sequences of a Step; 0 is 64, or MaxBatchTokens if that
	// is less.
	MaxSequences int
	// Products says what computes products of more than 64 rows; "" is Own. Engines that
	// pass KV to each other have the same.
	Products Products
	// CublasLt is the file of cuBLASLt, or a folder that has it, such as Python's
	// site-packages; "" is libcublasLt.so.13 or .12, wherever the system has it.
	CublasLt string
	// KV is the type of keys and values in pages; "" is KVBF16. Engines of different
	// types pass no pages to each other.
	KV KVType
	// NoGraphs launches every kernel of a decode step by itself. Tests compare the two.
	NoGraphs bool
	// Yields lets the steps of the device's other engines go first, unless they yield too:
	// a prefill's, beside decode.
	Yields bool
}

// maxBlocks is what a block id can name.
const maxBlocks = math.MaxInt32

// withDefaults fills in the zeros of what sizes the workspace.
func (c Config) withDefaults() Config {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&c.BlockTokens, DefaultBlockTokens)
	set(&c.MaxBatchTokens, DefaultMaxBatchTokens)
	set(&c.MaxSequences, min(DefaultMaxSequences, c.MaxBatchTokens))
	if c.Products == "" {
		c.Products = Own
	}
	if c.KV == "" {
		c.KV = KVBF16
	}
	return c
}

// complete checks c and fills in its zeros.
func (c Config) complete(spec model.Spec) (Config, error) {
	c = c.withDefaults()
	if err := c.KV.Validate(); err != nil {
		return c, fmt.Errorf("KV: %w", err)
	}
	switch {
	case c.BlockTokens < 16 || kernels.SplitTokens%c.BlockTokens != 0:
		return c, fmt.Errorf("blocks of %d tokens: use 16, 32, 64, 128 or 256", c.BlockTokens)
	case c.MaxBatchTokens < 1 || c.MaxBatchTokens > MostBatchTokens:
		return c, fmt.Errorf("batches of %d tokens: use 1 to %d", c.MaxBatchTokens, MostBatchTokens)
	case c.MaxSequences < 1 || c.MaxSequences > c.MaxBatchTokens:
		return c, fmt.Errorf("%d sequences in a batch of %d tokens: use 1 to %d", c.MaxSequences, c.MaxBatchTokens, c.MaxBatchTokens)
	case c.Products != Own && c.Products != CublasLt:
		return c, fmt.Errorf("products by %q: use %s or %s", c.Products, Own, CublasLt)
	case c.Blocks < 0 || c.KVBytes < 0:
		return c, errors.New("the number of blocks and the KV memory must not be negative")
	case c.Blocks == 0 && c.KVBytes == 0:
		return c, errors.New("no KV memory: set the number of blocks or the bytes")
	}
	page := int64(c.layout(spec, BF16).PageBytes()) // pages are as large whatever the weights are
	if c.Blocks == 0 {
		c.Blocks = int(min(c.KVBytes/page, maxBlocks/int64(c.BlockTokens)))
		if c.Blocks == 0 {
			return c, fmt.Errorf("%d bytes of KV memory do not hold one block of %d bytes", c.KVBytes, page)
		}
	}
	if c.Blocks > maxBlocks/c.BlockTokens || int64(c.Blocks) > math.MaxInt64/2/page {
		return c, fmt.Errorf("%d blocks of %d bytes are too many", c.Blocks, page)
	}
	return c, nil
}

// SliceBytes is what a slice of a KV page takes: one layer of a block of c.
func SliceBytes(spec model.Spec, c Config) int {
	c = c.withDefaults()
	return c.KV.kernels().SliceBytes(spec.KVHeads, c.BlockTokens, shapeOf(spec).stride)
}

// priority is that of the engine's steps. Copies have the least.
func (c Config) priority() driver.Priority {
	if c.Yields {
		return driver.Middle
	}
	return driver.High
}

func (c Config) layout(spec model.Spec, weights WeightType) kvcache.Layout {
	return kvcache.Layout{
		ModelDigest:     spec.Digest,
		ArithmeticClass: ArithmeticClass(weights, c.KV, c.Products),
		Layers:          spec.Layers,
		KVHeads:         spec.KVHeads,
		HeadSize:        spec.HeadSize,
		ElementType:     string(c.KV),
		BlockTokens:     c.BlockTokens,
		Order:           c.KV.order(),
		SliceBytes:      SliceBytes(spec, c),
	}
}

// checkModel refuses what the kernels do not compute.
func checkModel(spec model.Spec) error {
	if group := spec.Heads / spec.KVHeads; group > kernels.ThinRows {
		return fmt.Errorf("%s has %d heads for each KV head, the CUDA engine takes %d: use the CPU engine", spec.Name, group, kernels.ThinRows)
	}
	if spec.VocabSize > kernels.MostVocabulary {
		return fmt.Errorf("%s has a vocabulary of %d tokens, the CUDA engine takes %d: use the CPU engine", spec.Name, spec.VocabSize, kernels.MostVocabulary)
	}
	if err := kernels.HeadSize(spec.HeadSize); err != nil {
		return fmt.Errorf("%s: %w: use the CPU engine", spec.Name, err)
	}
	return nil
}
