package cpu

import (
	"runtime"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// WeightBytes is about what Load will allocate for a model, without its weights:
// matrices in bf16 in whole panels, norms and biases in float32.
func WeightBytes(s model.Spec) int64 {
	panels := func(rows, columns int) int64 {
		rows = (rows + kernels.Lanes - 1) / kernels.Lanes * kernels.Lanes
		return 4 * int64(rows) * int64((columns+1)/2)
	}
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
	total := int64(s.Layers)*layer + 4*int64(s.HiddenSize) + panels(s.VocabSize, s.HiddenSize)
	if !s.TiedEmbeddings {
		total += 2 * int64(s.VocabSize) * int64(s.HiddenSize)
	}
	return total
}

// WorkspaceBytes is what an engine allocates to compute in, beside its KV pages:
// activations of a batch, scratch of the threads, block tables. Threads of 0 are as
// many as Load takes then. It is 0 for what the engine refuses.
func WorkspaceBytes(s model.Spec, c Config) int64 {
	c = c.withDefaults(runtime.GOMAXPROCS(0))
	bytes, err := kernels.WorkspaceBytes(c.Threads, shapeOf(s, c.BlockTokens), c.limits(s))
	if err != nil {
		return 0
	}
	return int64(bytes)
}
