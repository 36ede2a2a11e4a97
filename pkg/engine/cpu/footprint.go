package cpu

import (
	"runtime"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// WeightBytes is what Load will allocate for a model, without its weights.
func WeightBytes(s model.Spec, kind WeightType) int64 {
	return int64(kernels.PackedBytes(shapeOf(s, kind, Config{}.withDefaults(1)), s.Layers, s.TiedEmbeddings))
}

// SliceBytes is what an engine's slice of a KV page takes: one layer of a block of c.
func SliceBytes(s model.Spec, c Config) int {
	return shapeOf(s, BF16, c.withDefaults(1)).SliceBytes()
}

// FootprintBytes is what loading a model takes with an engine whose c names Blocks: weights,
// KV pages and workspace.
func FootprintBytes(s model.Spec, c Config) int64 {
	kv := int64(c.Blocks) * int64(s.Layers) * int64(SliceBytes(s, c))
	return WeightBytes(s, c.withDefaults(1).Weights) + WorkspaceBytes(s, c) + kv
}

// WorkspaceBytes is what an engine allocates to compute in, beside its KV pages:
// activations of a batch, scratch of the threads, block tables. Threads of 0 are as
// many as Load takes then. It is 0 for what the engine refuses.
func WorkspaceBytes(s model.Spec, c Config) int64 {
	c = c.withDefaults(runtime.GOMAXPROCS(0))
	bytes, err := kernels.WorkspaceBytes(c.Threads, shapeOf(s, c.Weights, c), c.bounds(s))
	if err != nil {
		return 0
	}
	return int64(bytes)
}
