package cpu

import (
	"cmp"
	"fmt"
	"math"

	"github.com/spf13/pflag"

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

// Config says how Load loads weights and how large NewEngine makes an engine on them. The
// zero value is bf16 on all cores, and has no KV memory.
type Config struct {
	// Weights is the type that Load packs matrices in; "" is BF16.
	Weights WeightType
	// KV is the type of keys and values in pages; "" is KVBF16. Engines of different
	// types pass no pages to each other.
	KV KVType
	// Threads is how many compute threads Load starts, and how many of them an engine
	// uses; 0 takes the cores that this process may use (affinity and cgroup, as
	// GOMAXPROCS counts them, at most 1023), and all threads. More threads than cores are slower.
	Threads int
	// WeightCache is a folder that keeps packed weights, "" none: Load reads a model and
	// type that it holds from there, packs others and writes them there, in about as many
	// bytes as Weights.Bytes says. Whoever may write to it decides what the model says.
	WeightCache string
	// Beside, if set, are weights whose compute threads these share, in turns, in place of some
	// of their own. They are closed after these.
	Beside *Weights
	// ISA is an instruction set by name ("avx512amx", "avx512bf16", "avx512mixed",
	// "avx512", "avx2", "portable"); "" is the best one, of an engine that of the weights.
	// It changes speed, never results.
	ISA string
	// Blocks is the number of KV blocks; 0 takes what fits in KVBytes.
	Blocks int
	// KVBytes is the memory for KV pages, in bytes, where Blocks is 0.
	KVBytes int64
	// SharedKV has the pages in memory that other processes can map (engine.Sharing), where the
	// system has such; all of it is taken at once. Otherwise they are in memory of this process,
	// as without.
	SharedKV bool
	// BlockTokens is the size of a block: 16, 32, 64, 128 or 256 tokens; 0 is 32.
	BlockTokens int
	// MaxBatchTokens is the most tokens of a Step; 0 is 512.
	MaxBatchTokens int
	// MaxSequences is the most sequences of a Step; 0 is 64, or MaxBatchTokens if
	// that is less.
	MaxSequences int
	// Progress, if set, is called on Load's goroutine with the bytes that are done: of
	// the checkpoint, or of what WeightCache has or gets.
	Progress func(done, total int64)
	// Warn, if set, is called on Load's goroutine with what is wrong with WeightCache.
	// Weights are loaded all the same.
	Warn func(err error)
}

// RegisterFlags adds the flags of what operators choose, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Threads, "threads", 0, "compute threads (default: as many as the process may use)")
	fs.StringVar((*string)(&c.Weights), "cpu-weights", string(BF16), "CPU engine: type of the weights in memory: bf16, int8 or int4 (smaller and faster, but lower quality); must be equal on all workers that exchange KV")
	fs.StringVar((*string)(&c.KV), "cpu-kv", string(KVBF16), "CPU engine: type of keys and values in memory: bf16, or int8 (about half the memory, slightly different tokens; needs --decode-kv-encoding native); must be equal on all workers that exchange KV")
	fs.StringVar(&c.WeightCache, "cpu-weight-cache", "", "CPU engine: folder that caches packed weights, so that only the first start packs them; takes as much disk as the weights take memory, for each model and type")
}

// Validate checks what the flags set.
func (c *Config) Validate() error {
	switch {
	case c.Threads < 0 || c.Threads > kernels.MaxThreads:
		return fmt.Errorf("--threads: %d is outside 0 to %d", c.Threads, kernels.MaxThreads)
	case c.Weights.Validate() != nil:
		return fmt.Errorf("--cpu-weights: %w", c.Weights.Validate())
	case c.KV.Validate() != nil:
		return fmt.Errorf("--cpu-kv: %w", c.KV.Validate())
	}
	return nil
}

// Given are the flags with another value than their default, but for --threads.
func (c *Config) Given() (flags []string) {
	if c.Weights != BF16 {
		flags = append(flags, "--cpu-weights")
	}
	if c.KV != KVBF16 {
		flags = append(flags, "--cpu-kv")
	}
	if c.WeightCache != "" {
		flags = append(flags, "--cpu-weight-cache")
	}
	return flags
}

// maxBlocks is what a block id can name.
const maxBlocks = math.MaxInt32

// withDefaults fills in the zeros of what sizes the workspace.
func (c Config) withDefaults(threads int) Config {
	c.Weights, c.KV = cmp.Or(c.Weights, BF16), cmp.Or(c.KV, KVBF16)
	c.Threads = cmp.Or(c.Threads, min(threads, kernels.MaxThreads))
	c.BlockTokens = cmp.Or(c.BlockTokens, DefaultBlockTokens)
	c.MaxBatchTokens = cmp.Or(c.MaxBatchTokens, DefaultMaxBatchTokens)
	c.MaxSequences = cmp.Or(c.MaxSequences, min(DefaultMaxSequences, c.MaxBatchTokens))
	return c
}

// bounds are those of the workspace of a complete c.
func (c Config) bounds(spec model.Spec) kernels.BatchBounds {
	return kernels.BatchBounds{
		Rows: c.MaxBatchTokens, Sequences: c.MaxSequences, HeadRows: headRows,
		BlocksPerSequence: kvcache.BlocksFor(spec.ContextTokens, c.BlockTokens),
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
		return c, fmt.Errorf("%d threads: use the %d that the weights were loaded with", c.Threads, threads)
	case c.BlockTokens < kernels.Lanes || c.BlockTokens%kernels.Lanes != 0 || kernels.SplitTokens%c.BlockTokens != 0:
		return c, fmt.Errorf("blocks of %d tokens: use 16, 32, 64, 128 or 256", c.BlockTokens)
	case c.MaxBatchTokens < 1 || c.MaxBatchTokens > 1<<20:
		return c, fmt.Errorf("batches of %d tokens: use 1 to %d", c.MaxBatchTokens, 1<<20)
	case c.MaxSequences < 1 || c.MaxSequences > c.MaxBatchTokens:
		return c, fmt.Errorf("%d sequences in a batch of %d tokens: use 1 to %d", c.MaxSequences, c.MaxBatchTokens, c.MaxBatchTokens)
	}
	var err error
	c.Blocks, err = c.layout(spec, BF16).Blocks(c.Blocks, c.KVBytes, maxBlocks) // pages are as large whatever the weights are
	return c, err
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
