package mesh

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

// gpuRoom is what a model needs of a GPU's memory, and what there is, in bytes: all of it
// is taken at the start, so that no step can run out of memory.
type gpuRoom struct {
	spec model.Spec
	// weights are shared; each of the workers computes in workspace and has KV pages of
	// its own.
	weights, workspace, workers int64
	// block is one KV block of so many tokens, full the blocks of a full context.
	block, full int64
	blockTokens int64
	// budget is what the process may take of free bytes.
	budget, free int64
	// smaller are the rooms with types that take less, the nearest to what was asked for
	// first.
	smaller []smallerRoom
}

// smallerRoom is what a model needs with other types: flags are how to get them.
type smallerRoom struct {
	flags                           string
	weights, workspace, full, block int64
}

// newGPURoom adds up what workers need of a device that has free bytes.
func newGPURoom(spec model.Spec, e EngineOptions, workers int, free int64) gpuRoom {
	budget := int64(e.GPUMemory)
	if e.GPUMemory == Auto {
		budget = free / 10 * 9 // the driver, compiled kernels and others want some
	}
	asked := needOf(spec, e)
	r := gpuRoom{
		spec: spec, weights: asked.weights, workspace: asked.workspace, workers: int64(workers),
		block: asked.block, full: asked.full, blockTokens: int64(e.BlockTokens), budget: budget, free: free,
	}
	for _, weights := range cuda.WeightTypes() {
		for _, kv := range cuda.KVTypes() {
			other := e
			other.CUDAWeights, other.CUDAKV = weights, kv
			if other.checkCUDATypes() != nil {
				continue // cuBLASLt takes not all of them
			}
			need := needOf(spec, other)
			if need.weights > asked.weights || need.full > asked.full || need.weights == asked.weights && need.full == asked.full {
				continue
			}
			var flags []string
			if weights != e.cudaWeights() {
				flags = append(flags, "--cuda-weights "+string(weights))
			}
			if kv != e.cudaKV() {
				flags = append(flags, "--cuda-kv "+string(kv))
			}
			need.flags = strings.Join(flags, " ")
			r.smaller = append(r.smaller, need)
		}
	}
	// One flag before two.
	slices.SortStableFunc(r.smaller, func(a, b smallerRoom) int {
		return strings.Count(a.flags, "--") - strings.Count(b.flags, "--")
	})
	return r
}

// needOf is what a model needs with the types of e, whose flags it leaves out.
func needOf(spec model.Spec, e EngineOptions) smallerRoom {
	config := e.cudaConfig()
	block := int64(cuda.SliceBytes(spec, config)) * int64(spec.Layers)
	blocks := (int64(spec.ContextTokens) + int64(e.BlockTokens) - 1) / int64(e.BlockTokens)
	return smallerRoom{weights: cuda.WeightBytes(spec, e.cudaWeights()), workspace: cuda.WorkspaceBytes(spec, config), block: block, full: blocks * block}
}

// reserve is what the driver, compiled kernels and recorded graphs may take beside all that
// is planned.
func (r gpuRoom) reserve() int64 { return min(r.free/20, 512<<20) }

// perWorker is what is left for the KV pages of each worker; 0 or less: nothing.
func (r gpuRoom) perWorker() int64 { return (r.budget - r.weights - r.workers*r.workspace) / r.workers }

// or puts smaller types before another remedy: the first with which each worker, of asked
// bytes for KV or all that is left, has room for so much as need says.
func (r gpuRoom) or(remedy string, asked ByteSize, need func(smallerRoom) int64) string {
	for _, s := range r.smaller {
		left := (r.budget - s.weights - r.workers*s.workspace) / r.workers
		if asked != Auto {
			left = min(left, int64(asked))
		}
		if left >= need(s) {
			return s.flags + ", or " + remedy
		}
	}
	return remedy
}

// kvMemory checks the KV memory of each worker, and says what Auto stands for: all that
// is left, in whole blocks.
func (r gpuRoom) kvMemory(asked ByteSize) (ByteSize, error) {
	switch {
	case r.budget > r.free-r.reserve():
		return 0, fmt.Errorf("--gpu-memory: of %s only %s are free on the device, of which the driver and the kernels want %s: pass less, or free some",
			gib(r.budget), gib(r.free), gib(r.reserve()))
	case r.perWorker() < r.block:
		other := "--device " + DeviceCPU
		remedy := r.or(other, Auto, func(s smallerRoom) int64 { return s.full })
		if remedy == other { // none for a full context
			remedy = r.or(other, Auto, func(s smallerRoom) int64 { return s.block })
		}
		return 0, fmt.Errorf("%s does not fit the device: its weights take %s and activations %s for each of %d workers, of %s: use a smaller model, fewer workers or smaller --max-batch-tokens, or pass %s",
			r.spec.Name, gib(r.weights), gib(r.workspace), r.workers, gib(r.budget), remedy)
	}
	kv := int64(asked)
	if asked == Auto {
		kv = r.perWorker() / r.block * r.block
	}
	switch {
	case kv > r.perWorker():
		return 0, fmt.Errorf("--kv-memory: %s for each of %d workers, but weights (%s) and activations (%s) leave %s of %s: pass less",
			gib(kv), r.workers, gib(r.weights), gib(r.workers*r.workspace), gib(r.perWorker()), gib(r.budget))
	case kv < r.full:
		remedy := r.or(fmt.Sprintf("--context-tokens %d, or give it more memory", max(kv/r.block*r.blockTokens, 2)), asked, func(s smallerRoom) int64 { return s.full })
		return 0, fmt.Errorf("--kv-memory: %s hold %d tokens, but a sequence of %s may have %d, which take %s: pass %s",
			gib(kv), kv/r.block*r.blockTokens, r.spec.Name, r.spec.ContextTokens, gib(r.full), remedy)
	}
	return ByteSize(kv), nil
}

// checkGPU checks what depends on the model's shape and on the GPU's memory, and says what
// KVMemory Auto stands for. It is called before the weights are read.
func (o *Options) checkGPU(spec model.Spec, workers int) error {
	e := &o.Engine
	if err := o.checkCredit(cuda.SliceBytes(spec, e.cudaConfig())); err != nil {
		return err
	}
	if e.CUDAProducts == cuda.CublasLt {
		if err := cuda.FindCublasLt(e.CublasLt); err != nil {
			return fmt.Errorf("--cuda-products %s: %w", e.CUDAProducts, err)
		}
	}
	if e.MaxBatchTokens > cuda.MostBatchTokens {
		return fmt.Errorf("--max-batch-tokens: %d are more than the %d that a GPU's step takes: pass less", e.MaxBatchTokens, cuda.MostBatchTokens)
	}
	number, err := e.gpu()
	if err != nil {
		return err
	}
	free, err := cuda.FreeBytes(e.CUDADriver, number)
	if err != nil {
		return fmt.Errorf("--device %s: %w", e.Device, err)
	}
	if e.NVML != "" {
		if err := cuda.CheckHealth(e.CUDADriver, number, e.NVML); err != nil {
			return fmt.Errorf("--nvml: %w", err)
		}
	}
	e.KVMemory, err = newGPURoom(spec, *e, workers, free).kvMemory(e.KVMemory)
	return err
}
