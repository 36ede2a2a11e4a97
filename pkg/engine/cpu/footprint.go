package cpu

import (
	"runtime"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// WeightBytes is about what Load will allocate for a model, without its weights:
// matrices in whole panels, norms and biases in float32, and in bf16 the embedding,
// where it is not the output matrix as it is packed.
func WeightBytes(s model.Spec, kind WeightType) int64 {
	shape := shapeOf(s, kind, Config{}.withDefaults(1))
	panels := func(rows, columns int) int64 { return int64(shape.Layers.PanelBytes(rows, columns)) }
	q, kv := s.Heads*s.HeadSize, s.KVHeads*s.HeadSize
	ffn := (s.FFNSize + kernels.Lanes - 1) / kernels.Lanes * kernels.Lanes
	floats := 2 * s.HiddenSize
	if s.QKVBias {
		floats += q + 2*kv
	}
	if s.QKNorm {
		floats += 2 * s.HeadSize
	}
	layer := 4*int64(floats) + panels(q+2*kv, s.HiddenSize) + panels(s.HiddenSize, q) + panels(2*ffn, s.HiddenSize) + panels(s.HiddenSize, s.FFNSize)
	total := int64(s.Layers)*layer + 4*int64(s.HiddenSize) + int64(shape.Head.PanelBytes(s.VocabSize, s.HiddenSize))
	if !s.TiedEmbeddings || kind != BF16 {
		total += 2 * int64(s.VocabSize) * int64(s.HiddenSize)
	}
	return total
}

// SliceBytes is what an engine's slice of a KV page takes: one layer of a block of c.
func SliceBytes(s model.Spec, c Config) int {
	return shapeOf(s, BF16, c.withDefaults(1)).SliceBytes()
}

// FootprintBytes is about what loading a model takes with an engine whose c names Blocks: weights,
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
	bytes, err := kernels.WorkspaceBytes(c.Threads, shapeOf(s, c.Weights, c), c.limits(s))
	if err != nil {
		return 0
	}
	return int64(bytes)
}
