package engines

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

// gpuSizing is what a model needs of a GPU's memory, and what there is, in bytes: all of it
// is taken at the start, so that no step can run out of memory.
type gpuSizing struct {
	need
	spec                 model.Spec
	workers, blockTokens int64
	// budget is what the process may take of free bytes.
	budget, free int64
	// smaller are needs with types that take less, the nearest to what was asked for
	// first.
	smaller []smallerNeed
	// insteadOfGPU is as of Config.
	insteadOfGPU string
}

// smallerNeed is what a model needs with other types: flags are how to get them.
type smallerNeed struct {
	flags string
	need
}

// newGPUSizing adds up what workers need of a device that has free bytes.
func newGPUSizing(spec model.Spec, c Config, workers int, free int64) gpuSizing {
	budget := int64(c.CUDA.Memory)
	if c.CUDA.Memory == bytesize.Auto {
		budget = free / 10 * 9 // the driver, compiled kernels and others want some
	}
	config := c.sized().CUDA
	needOf := func(config cuda.Config) need {
		return newNeed(spec, c.BlockTokens, cuda.WeightBytes(spec, config.Weights), cuda.WorkspaceBytes(spec, config), cuda.SliceBytes(spec, config))
	}
	r := gpuSizing{need: needOf(config), spec: spec, workers: int64(workers), blockTokens: int64(c.BlockTokens), budget: budget, free: free, insteadOfGPU: c.insteadOfGPU}
	for _, weights := range cuda.WeightTypes() {
		for _, kv := range cuda.KVTypes() {
			other := config
			other.Weights, other.KV = weights, kv
			if other.Validate() != nil {
				continue // cuBLASLt takes not all of them
			}
			n := needOf(other)
			if n.weights > r.weights || n.full > r.full || n.weights == r.weights && n.full == r.full {
				continue
			}
			var flags []string
			if weights != config.Weights {
				flags = append(flags, "--cuda-weights "+string(weights))
			}
			if kv != config.KV {
				flags = append(flags, "--cuda-kv "+string(kv))
			}
			r.smaller = append(r.smaller, smallerNeed{strings.Join(flags, " "), n})
		}
	}
	// One flag before two.
	slices.SortStableFunc(r.smaller, func(a, b smallerNeed) int {
		return strings.Count(a.flags, "--") - strings.Count(b.flags, "--")
	})
	return r
}

// reserve is what the driver, compiled kernels and recorded graphs may take beside all that
// is planned.
func (r gpuSizing) reserve() int64 { return min(r.free/20, 512<<20) }

// perWorker is what is left for the KV pages of each worker; 0 or less: nothing.
func (r gpuSizing) perWorker() int64 { return r.need.perWorker(r.budget, r.workers) }

// or puts smaller types before another remedy: the first with which each worker, of asked
// bytes for KV or all that is left, has memory for that amount.
func (r gpuSizing) or(remedy string, asked bytesize.Size, amount func(need) int64) string {
	for _, s := range r.smaller {
		left := s.perWorker(r.budget, r.workers)
		if asked != bytesize.Auto {
			left = min(left, int64(asked))
		}
		if left >= amount(s.need) {
			return s.flags + ", or " + remedy
		}
	}
	return remedy
}

// kvMemory checks the KV memory of each worker, and says what bytesize.Auto stands for: all that
// is left, in whole blocks.
func (r gpuSizing) kvMemory(asked bytesize.Size) (bytesize.Size, error) {
	switch {
	case r.budget > r.free-r.reserve():
		return 0, fmt.Errorf("--gpu-memory: %s is too much: %s is free on the device, and the driver and the kernels need %s of that: pass less, or free some",
			bytesize.Text(r.budget), bytesize.Text(r.free), bytesize.Text(r.reserve()))
	case r.perWorker() < r.block:
		other := r.insteadOfGPU
		remedy := r.or(other, bytesize.Auto, func(n need) int64 { return n.full })
		if remedy == other { // none for a full context
			remedy = r.or(other, bytesize.Auto, func(n need) int64 { return n.block })
		}
		return 0, fmt.Errorf("%s does not fit the device: its weights take %s and activations %s for each of %d workers, but only %s is available: use a smaller model, fewer workers or a smaller --max-batch-tokens, or pass %s",
			r.spec.Name, bytesize.Text(r.weights), bytesize.Text(r.workspace), r.workers, bytesize.Text(r.budget), remedy)
	}
	kv := int64(asked)
	if asked == bytesize.Auto {
		kv = r.perWorker() / r.block * r.block
	}
	switch {
	case kv > r.perWorker():
		return 0, fmt.Errorf("--kv-memory: %s for each of %d workers is too much: weights (%s) and activations (%s) leave %s of %s: pass less",
			bytesize.Text(kv), r.workers, bytesize.Text(r.weights), bytesize.Text(r.workers*r.workspace), bytesize.Text(r.perWorker()), bytesize.Text(r.budget))
	case kv < r.full:
		remedy := r.or(fmt.Sprintf("--context-tokens %d, or give it more memory", max(kv/r.block*r.blockTokens, 2)), asked, func(n need) int64 { return n.full })
		return 0, fmt.Errorf("--kv-memory: %s holds %d tokens, but a sequence of %s may have %d, which take %s: pass %s",
			bytesize.Text(kv), kv/r.block*r.blockTokens, r.spec.Name, r.spec.ContextTokens, bytesize.Text(r.full), remedy)
	}
	return bytesize.Size(kv), nil
}

// sizeGPU is Size on a GPU.
func (c *Config) sizeGPU(spec model.Spec, workers int) error {
	if c.CUDA.Products == cuda.CublasLt {
		if err := cuda.FindCublasLt(c.CUDA.CublasLt); err != nil {
			return fmt.Errorf("--cuda-products %s: %w", c.CUDA.Products, err)
		}
	}
	if c.MaxBatchTokens > cuda.MostBatchTokens {
		return fmt.Errorf("--max-batch-tokens: %d is more than the %d that a GPU computes in one step: pass less", c.MaxBatchTokens, cuda.MostBatchTokens)
	}
	free, err := cuda.FreeBytes(c.CUDA.Driver, c.CUDA.Device)
	if err != nil {
		return fmt.Errorf("--device %s: %w", c.Device, err)
	}
	if c.CUDA.NVML != "" {
		if err := cuda.CheckHealth(c.CUDA.Driver, c.CUDA.Device, c.CUDA.NVML); err != nil {
			return fmt.Errorf("--nvml: %w", err)
		}
	}
	c.KVMemory, err = newGPUSizing(spec, *c, workers, free).kvMemory(c.KVMemory)
	return err
}
