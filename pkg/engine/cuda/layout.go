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
	ldSquares                int // of sums of squares of the residual's rows
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
		ldSquares: padded((s.HiddenSize+kernels.SquaresOf-1)/kernels.SquaresOf, 4),
	}
}

// matrix is where a matrix of weights is: rows, ld elements apart, of bf16, or of 8 bits
// with a float32 for each row in scales.
type matrix struct {
	rows, scales driver.Address // scales of bf16 are 0
	ld           int
	kind         kernels.Weights
}

// from is the matrix without its first rows.
func (m matrix) from(row int) matrix {
	m.rows += driver.Address(row * m.rowBytes())
	if m.scales != 0 {
		m.scales += driver.Address(4 * row)
	}
	return m
}

func (m matrix) rowBytes() int { return m.ld * m.kind.Bytes() }

// layerAddresses are where a layer's weights are. What are no matrices is float32; what a
// model has not is 0.
type layerAddresses struct {
	attentionNorm, ffnNorm driver.Address
	qkv, o, gate, up, down matrix
	bias, qNorm, kNorm     driver.Address
}

// weightAddresses are where a model's weights are.
type weightAddresses struct {
	embedding, output matrix // which are one, if they are tied and of one type
	finalNorm         driver.Address
	cos, sin          driver.Address // [position][headSize/2]
	layers            []layerAddresses
}

// takeMatrix takes space for so many rows, padded to whole tiles, and for their scales.
func (a *arena) takeMatrix(kind kernels.Weights, rows, ld int) matrix {
	m := matrix{ld: ld, kind: kind}
	m.rows = a.take(int64(padded(rows, kernels.Tile)) * int64(m.rowBytes()))
	if kind != kernels.BF16 {
		m.scales = a.take(4 * int64(rows))
	}
	return m
}

// layWeights takes the parts of a model's weights from an arena.
func layWeights(a *arena, spec model.Spec, kind WeightType) weightAddresses {
	s := shapeOf(spec)
	floats := func(n int) driver.Address { return a.take(4 * int64(n)) }
	w := weightAddresses{layers: make([]layerAddresses, spec.Layers)}
	w.embedding = a.takeMatrix(kernels.BF16, s.vocab, s.ldHidden)
	w.output = w.embedding
	if !spec.TiedEmbeddings || kind.head() != kernels.BF16 {
		w.output = a.takeMatrix(kind.head(), s.vocab, s.ldHidden)
	}
	w.finalNorm = floats(s.hidden)
	w.cos, w.sin = floats(spec.ContextTokens*s.headSize/2), floats(spec.ContextTokens*s.headSize/2)
	for i := range w.layers {
		l := &w.layers[i]
		l.attentionNorm, l.ffnNorm = floats(s.hidden), floats(s.hidden)
		l.qkv = a.takeMatrix(kind.layers(), s.qkv, s.ldHidden)
		l.o = a.takeMatrix(kind.layers(), s.hidden, s.ldQ)
		// In bf16 one matrix for fast: whole tiles of gate, then up.
		l.gate = a.takeMatrix(kind.layers(), s.ffn, s.ldHidden)
		l.up = a.takeMatrix(kind.layers(), s.ffn, s.ldHidden)
		l.down = a.takeMatrix(kind.layers(), s.hidden, s.ldFFN)
		if spec.QKVBias {
			l.bias = floats(s.qkv)
		}
		if spec.QKNorm {
			l.qNorm, l.kNorm = floats(s.headSize), floats(s.headSize)
		}
	}
	return w
}

// WeightBytes is the device memory that a model's weights take. While those of 8 bits are
// loaded there is a staging buffer beside them, which is small.
func WeightBytes(spec model.Spec, kind WeightType) int64 {
	var a arena
	layWeights(&a, spec, kind)
	return a.used
}
