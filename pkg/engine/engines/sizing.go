package engines

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
)

// autoKVMemory is what KVMemory bytesize.Auto stands for where there is enough memory and
// a full context does not take more.
const autoKVMemory bytesize.Size = 1 << 30

// need is what a model takes of a memory, in bytes: weights are shared; each worker
// computes in workspace and has KV pages of its own, of which block is one and full those
// of a full context.
type need struct{ weights, workspace, block, full int64 }

// newNeed is the need of a model with such weights, workspace and slices.
func newNeed(spec model.Spec, blockTokens int, weights, workspace int64, sliceBytes int) need {
	block := int64(sliceBytes) * int64(spec.Layers)
	blocks := kvcache.BlocksFor(spec.ContextTokens, blockTokens)
	return need{weights: weights, workspace: workspace, block: block, full: int64(blocks) * block}
}

// perWorker is what bytes leave for the KV pages of each worker; 0 or less: nothing.
func (n need) perWorker(bytes, workers int64) int64 {
	return (bytes - n.weights - workers*n.workspace) / workers
}

// SliceBytes is the size of one layer's slice of a KV block, the least that is sent of KV;
// 0 where that is a few bytes. Choose is called before.
func (c Config) SliceBytes(spec model.Spec) int {
	c = c.sized()
	switch {
	case c.Name == CUDA:
		return cuda.SliceBytes(spec, c.CUDA)
	case c.Name == CPU || c.Simulated.RealPages:
		return cpu.SliceBytes(spec, c.CPU)
	}
	return 0
}

// Size says what KVMemory bytesize.Auto stands for, and refuses what the model's shape, the
// free memory of the process or that of the GPU does not allow. It is called after Choose
// and before the weights are read, which may take minutes; workers is how many share them, and
// decoding how many of those decode, whose KV ShareKV shares.
// The simulated engine has the same number of blocks, of fewer bytes. A warning is about
// what may come, not about what is wrong.
func (c *Config) Size(spec model.Spec, workers, decoding int, free memory.Left) (warning string, err error) {
	if c.Name == CUDA {
		return "", c.sizeGPU(spec, workers)
	}
	if c.Name != CPU {
		free.Bytes = math.MaxInt64
	}
	r := newHostSizing(spec, *c, workers, free)
	if err := r.checkWeights(); err != nil {
		return "", err
	}
	if c.KVMemory == bytesize.Auto {
		c.KVMemory, warning = r.auto(c.BlockTokens)
		if r.kvWorkers = int64(decoding); c.ShareKV && decoding > 0 {
			if why := r.short(c.KVMemory, c.BlockTokens); why != "" {
				return "", fmt.Errorf("--kv-transport: with shm all KV memory of decode workers is taken at the start: %s; without shm memory is taken as it is used", why)
			}
		}
		return warning, nil
	}
	if int64(c.KVMemory) < r.block {
		return "", fmt.Errorf("--kv-memory: %s does not hold one block of %d tokens, which takes %d bytes: pass more, or smaller --block-tokens",
			c.KVMemory.String(), c.BlockTokens, r.block)
	}
	if need := bytesize.Size(r.full); c.KVMemory < need {
		holds := r.contextOf(int64(c.KVMemory), c.BlockTokens)
		unused := "; pages that are never used cost nothing"
		if c.ShareKV {
			unused = ""
		}
		return "", fmt.Errorf("--kv-memory: %s holds %d tokens, but a sequence of %s may have %d, which take %s: pass %s or more, or --context-tokens %d%s",
			c.KVMemory.String(), holds, spec.Name, spec.ContextTokens, need.String(), need.String(), holds, unused)
	}
	return "", r.checkKV(c.KVMemory, c.BlockTokens)
}
