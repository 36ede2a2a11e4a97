package cpu

import (
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

// WorkspaceBytes is about what an engine allocates to compute in, beside its KV
// pages: rows of activations for MaxBatchTokens, and block tables.
func WorkspaceBytes(s model.Spec, c Config) int64 {
	q, kv := s.Heads*s.HeadSize, s.KVHeads*s.HeadSize
	const float, half = 4, 2
	row := s.HiddenSize*(float+half) + (q+2*kv)*float + 2*q*half + s.FFNSize*half + s.HeadSize*float
	blocks := (s.ContextTokens + c.BlockTokens - 1) / c.BlockTokens
	return int64(c.MaxBatchTokens)*int64(row) + int64(headRows)*int64(s.VocabSize)*float + int64(c.MaxSequences)*int64(blocks)*float
}
