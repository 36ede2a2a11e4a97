package cuda

import (
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// shape is what the kernels need of a model: sizes in elements, and the distances of
// rows (ld), which are padded with zeros to whole blocks of K.
type shape struct {
	hidden, ffn, vocab       int
	heads, kvHeads, headSize int
	stride                   int // of heads in queries and pages
	q, qkv                   int // widths of the queries, and of queries, keys and values
	ldHidden, ldFFN, ldQ     int
	ldQKV, ldLogits          int
}

func shapeOf(s model.Spec) shape {
	q := s.Heads * s.HeadSize
	qkv := q + 2*s.KVHeads*s.HeadSize
	stride := padded(s.HeadSize, kernels.HeadBlock)
	return shape{
		hidden: s.HiddenSize, ffn: s.FFNSize, vocab: s.VocabSize,
		heads: s.Heads, kvHeads: s.KVHeads, headSize: s.HeadSize, stride: stride, q: q, qkv: qkv,
		ldHidden: padded(s.HiddenSize, kernels.KBlock), ldFFN: padded(s.FFNSize, kernels.KBlock), ldQ: padded(s.Heads*stride, kernels.KBlock),
		ldQKV: padded(qkv, kernels.KBlock), ldLogits: padded(s.VocabSize, kernels.KBlock),
	}
}

// layerAddresses are where a layer's weights are. Matrices are bf16, the rest float32;
// what a model has not is 0.
type layerAddresses struct {
	attentionNorm, ffnNorm driver.Address
	qkv, o, gate, up, down driver.Address
	bias, qNorm, kNorm     driver.Address
}

// weightAddresses are where a model's weights are.
type weightAddresses struct {
	embedding, output, finalNorm driver.Address
	cos, sin                     driver.Address // [position][headSize/2]
	layers                       []layerAddresses
}

// matrixBytes is the size of a bf16 matrix of so many rows, padded to whole tiles.
func matrixBytes(rows, ld int) int64 { return 2 * int64(padded(rows, kernels.Tile)) * int64(ld) }

// layWeights takes the parts of a model's weights from an arena.
func layWeights(a *arena, spec model.Spec) weightAddresses {
	s := shapeOf(spec)
	floats := func(n int) driver.Address { return a.take(4 * int64(n)) }
	w := weightAddresses{layers: make([]layerAddresses, spec.Layers)}
	w.embedding = a.take(matrixBytes(s.vocab, s.ldHidden))
	w.output = w.embedding
	if !spec.TiedEmbeddings {
		w.output = a.take(matrixBytes(s.vocab, s.ldHidden))
	}
	w.finalNorm = floats(s.hidden)
	w.cos, w.sin = floats(spec.ContextTokens*s.headSize/2), floats(spec.ContextTokens*s.headSize/2)
	for i := range w.layers {
		l := &w.layers[i]
		l.attentionNorm, l.ffnNorm = floats(s.hidden), floats(s.hidden)
		l.qkv = a.take(matrixBytes(s.qkv, s.ldHidden))
		l.o = a.take(matrixBytes(s.hidden, s.ldQ))
		// One matrix for fast: whole tiles of gate, then up.
		l.gate = a.take(matrixBytes(s.ffn, s.ldHidden))
		l.up = a.take(matrixBytes(s.ffn, s.ldHidden))
		l.down = a.take(matrixBytes(s.hidden, s.ldFFN))
		if spec.QKVBias {
			l.bias = floats(s.qkv)
		}
		if spec.QKNorm {
			l.qNorm, l.kNorm = floats(s.headSize), floats(s.headSize)
		}
	}
	return w
}

// WeightBytes is the device memory that a model's weights take.
func WeightBytes(spec model.Spec) int64 {
	var a arena
	layWeights(&a, spec)
	return a.used
}
