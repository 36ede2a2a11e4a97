package cuda

import (
	"cmp"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/bytesize"
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

// orderBF16 names the order of elements in a slice of a page: keys as [kv head][token]
// [dimension], then values likewise.
const orderBF16 = "k-td/v-td/1"

// orderFP8 is that of KVFP8: codes of keys as [kv head][token][dimension], with dimensions
// 0, 2, 1, 3 of each four, values likewise; then a byte for each scale of keys as [kv head]
// [token], which is the exponent of a float32, then of values.
const orderFP8 = "k-td4/v-td4/s-t/1"

// Config says how Load puts weights on a device and how large NewEngine makes an engine on
// them. The zero value is bf16 on the first device, and has no KV memory.
type Config struct {
	// Driver is the file of the driver's library; "" is libcuda.so.1, wherever the system
	// has it.
	Driver string
	// Device is the device's number, as the driver counts them.
	Device int
	// Memory is the device memory that whoever sizes the engines of a process may give
	// them; bytesize.Auto leaves it to that one. Neither Load nor NewEngine looks at it.
	Memory bytesize.Size
	// NVML is the file of NVIDIA's management library, by which the device can be watched;
	// "" is the system's.
	NVML string
	// Weights is what Load keeps the layers' matrices as; "" is BF16.
	Weights WeightType
	// KV is the type of keys and values in pages; "" is KVBF16. Engines of different
	// types pass no pages to each other.
	KV KVType
	// Products says what computes products of more than 64 rows; "" is Own. Engines that
	// pass KV to each other have the same.
	Products Products
	// CublasLt is the file of cuBLASLt, or a folder that has it, such as Python's
	// site-packages; "" is libcublasLt.so.13 or .12, wherever the system has it.
	CublasLt string
	// CopyRate is the most that is copied between the host and KV pages while a step of the
	// device runs, over all engines of the weights, in bytes a second: LeastCopyRate at
	// least. 0 is without a bound.
	CopyRate int64
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
	// NoGraphs launches every kernel of a decode step by itself. Tests compare the two.
	NoGraphs bool
	// Yields lets the steps of the device's other engines go first, unless they yield too:
	// a prefill's, beside decode.
	Yields bool
	// Progress, if set, is called on Load's goroutine with the bytes of the checkpoint
	// that are done.
	Progress func(done, total int64)
}

// RegisterFlags adds the flags of what operators choose, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Driver, "cuda-driver", "", "path of the CUDA driver library (default: libcuda.so.1, as the system finds it)")
	fs.StringVar((*string)(&c.Products), "cuda-products", string(Own), "CUDA engine: library for matrix products of more than 64 rows: own (tokens do not depend on the batch) or cublaslt (faster prompts; tokens may depend on the batch and on prompt chunks); must be equal on all workers that exchange KV")
	fs.StringVar(&c.CublasLt, "cublaslt", "", "path of the cuBLASLt library, version 12 or 13, or of a folder that contains it (default: libcublasLt.so, as the system finds it); needs --cuda-products cublaslt")
	fs.StringVar(&c.NVML, "nvml", "", "path of NVIDIA's management library, which reports GPU errors (default: libnvidia-ml.so.1, as the system finds it; without it the GPU is not watched)")
	fs.StringVar((*string)(&c.Weights), "cuda-weights", string(BF16), "CUDA engine: type of the layers' weights: bf16, int8 or fp8 (8 bits halve memory and decode time, but change tokens slightly); must be equal on all workers that exchange KV")
	fs.StringVar((*string)(&c.KV), "cuda-kv", string(KVBF16), "CUDA engine: type of keys and values: bf16 or fp8 (nearly twice the context, but slightly different tokens); must be equal on all workers that exchange KV")
	fs.Var(&c.Memory, "gpu-memory", "device memory that this process may use, such as 40GiB; auto: nine tenths of what is free at the start")
	fs.Int64Var(&c.CopyRate, "gpu-copy-rate", 0, "limit on copies between host memory and a GPU's KV pages during a step, in bytes per second, at least 16777216; 0: no limit")
}

// Validate checks what the flags set.
func (c *Config) Validate() error {
	switch {
	case c.Memory < 0:
		return fmt.Errorf("--gpu-memory: %v is negative", c.Memory.String())
	case c.Weights.Validate() != nil:
		return fmt.Errorf("--cuda-weights: %w", c.Weights.Validate())
	case c.KV.Validate() != nil:
		return fmt.Errorf("--cuda-kv: %w", c.KV.Validate())
	case c.CopyRate != 0 && c.CopyRate < LeastCopyRate:
		return fmt.Errorf("--gpu-copy-rate: %d is too low: use 0 for no limit, or at least %d", c.CopyRate, LeastCopyRate)
	case c.Products != Own && c.Products != CublasLt:
		return fmt.Errorf("--cuda-products: %q is neither %s nor %s", c.Products, Own, CublasLt)
	case c.Products == CublasLt && c.Weights != BF16:
		return fmt.Errorf("--cuda-weights: cuBLASLt multiplies only %s: leave out --cuda-products %s or --cuda-weights", BF16, CublasLt)
	case c.Products == Own && c.CublasLt != "":
		return fmt.Errorf("--cublaslt: no effect without --cuda-products %s: pass both or neither", CublasLt)
	}
	return nil
}

// Given are the flags with another value than their default, types with that value.
func (c *Config) Given() (flags []string) {
	for _, f := range []struct {
		flag  string
		given bool
	}{
		{"--gpu-memory", c.Memory != bytesize.Auto},
		{"--gpu-copy-rate", c.CopyRate != 0},
		{"--cuda-driver", c.Driver != ""},
		{"--nvml", c.NVML != ""},
		{"--cuda-products " + string(c.Products), c.Products != Own},
		{"--cuda-weights " + string(c.Weights), c.Weights != BF16},
		{"--cuda-kv " + string(c.KV), c.KV != KVBF16},
	} {
		if f.given {
			flags = append(flags, f.flag)
		}
	}
	return flags
}

// maxBlocks is what a block id can name.
const maxBlocks = math.MaxInt32

// withDefaults fills in the zeros of what sizes the workspace.
func (c Config) withDefaults() Config {
	c.Weights, c.KV, c.Products = cmp.Or(c.Weights, BF16), cmp.Or(c.KV, KVBF16), cmp.Or(c.Products, Own)
	c.BlockTokens = cmp.Or(c.BlockTokens, DefaultBlockTokens)
	c.MaxBatchTokens = cmp.Or(c.MaxBatchTokens, DefaultMaxBatchTokens)
	c.MaxSequences = cmp.Or(c.MaxSequences, min(DefaultMaxSequences, c.MaxBatchTokens))
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
		return c, fmt.Errorf("no library for products is called %q: use %s or %s", c.Products, Own, CublasLt)
	}
	var err error
	c.Blocks, err = c.layout(spec, BF16).Blocks(c.Blocks, c.KVBytes, maxBlocks/c.BlockTokens) // pages are as large whatever the weights are
	return c, err
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
		return fmt.Errorf("%s has %d heads for each KV head, but the CUDA engine takes at most %d: use the CPU engine", spec.Name, group, kernels.ThinRows)
	}
	if spec.VocabSize > kernels.MostVocabulary {
		return fmt.Errorf("%s has a vocabulary of %d tokens, but the CUDA engine takes at most %d: use the CPU engine", spec.Name, spec.VocabSize, kernels.MostVocabulary)
	}
	if err := kernels.HeadSize(spec.HeadSize); err != nil {
		return fmt.Errorf("%s: %w: use the CPU engine", spec.Name, err)
	}
	return nil
}
