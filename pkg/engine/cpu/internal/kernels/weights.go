package kernels

/*
#include "tdm_kernels.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Matrix is a tensor of a checkpoint: row-major, little-endian.
type Matrix struct {
	// Type is "bf16", "f16" or "f32".
	Type          string
	Rows, Columns int
	Data          []byte
}

func (m Matrix) elementType() (code C.int, bytes int, err error) {
	switch m.Type {
	case "bf16":
		return C.TDM_BF16, 2, nil
	case "f16":
		return C.TDM_F16, 2, nil
	case "f32":
		return C.TDM_F32, 4, nil
	}
	return 0, 0, fmt.Errorf("element type %q is not bf16, f16 or f32", m.Type)
}

func (m Matrix) check(rows, columns int) error {
	_, size, err := m.elementType()
	if err != nil {
		return err
	}
	if m.Rows != rows || m.Columns != columns || len(m.Data) != rows*columns*size {
		return fmt.Errorf("%d x %d elements of %s in %d bytes, want %d x %d", m.Rows, m.Columns, m.Type, len(m.Data), rows, columns)
	}
	return nil
}

// LayerMatrices are the weights of one layer.
type LayerMatrices struct {
	AttentionNorm, Q, K, V, O, FFNNorm, Gate, Up, Down Matrix
	// QBias, KBias and VBias are there if Shape.QKVBias, QNorm and KNorm if
	// Shape.QKNorm; one column each.
	QBias, KBias, VBias, QNorm, KNorm Matrix
	// Window is the tokens that a query of this layer sees, itself included; 0
	// for all.
	Window int
}

// Weights are packed weights, outside the Go heap. They do not change once they
// are packed, and any number of workspaces share them.
type Weights struct {
	shape     Shape
	pool      *Pool
	memory    Memory
	parts     [][]byte // of memory, all that is packed
	layers    *C.tdm_layer_weights
	count     int
	finalNorm *C.float
	output    unsafe.Pointer
	embedding *C.uint16_t // nil: the embedding is the output matrix, in pairs
}

// NewWeights allocates memory for the packed weights. Sizes that follow from the
// shape only; BlockTokens does not matter. A tied embedding is a copy unless the head is
// packed in pairs.
func NewWeights(pool *Pool, shape Shape, layers int, tied bool) (*Weights, error) {
	shape.BlockTokens = SplitTokens
	if err := shape.check(); err != nil {
		return nil, err
	}
	if layers <= 0 || layers > 1<<16 {
		return nil, fmt.Errorf("%w: %d layers", errShape, layers)
	}
	w := &Weights{shape: shape, pool: pool, count: layers}
	var err error
	w.memory, err = build(func(a *arena) { w.lay(a, tied) })
	if err != nil {
		return nil, fmt.Errorf("memory for packed weights: %w", err)
	}
	return w, nil
}

// PackedBytes is what NewWeights allocates.
func PackedBytes(shape Shape, layers int, tied bool) int {
	w := &Weights{shape: shape, count: layers}
	return measure(func(a *arena) { w.lay(a, tied) })
}

// lay takes all parts.
func (w *Weights) lay(a *arena, tied bool) {
	shape := w.shape
	q, kv := shape.Heads*shape.HeadSize, shape.KVHeads*shape.HeadSize
	w.layers = take[C.tdm_layer_weights](a, w.count)
	table := len(a.parts) // pointers and windows, which are not packed
	for i := range w.count {
		l := C.tdm_layer_weights{
			attention_norm: take[C.float](a, shape.Hidden),
			ffn_norm:       take[C.float](a, shape.Hidden),
			qkv:            panels(a, shape.Layers, q+2*kv, shape.Hidden),
			o:              panels(a, shape.Layers, shape.Hidden, q),
			gate_up:        panels(a, shape.Layers, 2*roundUp(shape.FFN, Lanes), shape.Hidden),
			down:           panels(a, shape.Layers, shape.Hidden, shape.FFN),
			window:         windowOf(0),
		}
		if shape.QKVBias {
			l.qkv_bias = take[C.float](a, q+2*kv)
		}
		if shape.QKNorm {
			l.q_norm, l.k_norm = take[C.float](a, shape.HeadSize), take[C.float](a, shape.HeadSize)
		}
		if w.layers != nil {
			unsafe.Slice(w.layers, w.count)[i] = l
		}
	}
	w.finalNorm = take[C.float](a, shape.Hidden)
	w.output = panels(a, shape.Head, shape.Vocab, shape.Hidden)
	if !tied || shape.Head != Pairs {
		w.embedding = take[C.uint16_t](a, shape.Vocab*shape.Hidden)
	}
	w.parts = a.parts[table:]
}

// panels reserves a packed matrix.
func panels(a *arena, f Format, rows, columns int) unsafe.Pointer {
	return a.take(f.PanelBytes(rows, columns))
}

// Bytes is the size of the packed weights.
func (w *Weights) Bytes() int { return w.memory.size }

// Free unmaps them. No workspace may use them any more.
func (w *Weights) Free() { w.memory.Free() }

// PackLayer packs layer i, on all threads of the pool.
func (w *Weights) PackLayer(i int, m LayerMatrices) error {
	if i < 0 || i >= w.count {
		return fmt.Errorf("layer %d of %d", i, w.count)
	}
	s, l := w.shape, &unsafe.Slice(w.layers, w.count)[i]
	q, kv := s.Heads*s.HeadSize, s.KVHeads*s.HeadSize
	type vector struct {
		to *C.float
		m  Matrix
		n  int
	}
	vectors := []vector{{l.attention_norm, m.AttentionNorm, s.Hidden}, {l.ffn_norm, m.FFNNorm, s.Hidden}}
	if s.QKVBias {
		bias := unsafe.Slice(l.qkv_bias, q+2*kv) // as rows of the product
		vectors = append(vectors, vector{&bias[0], m.QBias, q}, vector{&bias[q], m.KBias, kv}, vector{&bias[q+kv], m.VBias, kv})
	}
	if s.QKNorm {
		vectors = append(vectors, vector{l.q_norm, m.QNorm, s.HeadSize}, vector{l.k_norm, m.KNorm, s.HeadSize})
	}
	for _, v := range vectors {
		if err := widen(v.to, v.m, v.n); err != nil {
			return err
		}
	}
	l.window = windowOf(m.Window)
	for _, v := range []struct {
		to                        unsafe.Pointer
		m                         Matrix
		rows, columns, row0, step int
	}{
		{l.qkv, m.Q, q, s.Hidden, 0, Lanes},
		{l.qkv, m.K, kv, s.Hidden, q, Lanes},
		{l.qkv, m.V, kv, s.Hidden, q + kv, Lanes},
		{l.o, m.O, s.Hidden, q, 0, Lanes},
		{l.gate_up, m.Gate, s.FFN, s.Hidden, 0, 2 * Lanes},
		{l.gate_up, m.Up, s.FFN, s.Hidden, Lanes, 2 * Lanes},
		{l.down, m.Down, s.Hidden, s.FFN, 0, Lanes},
	} {
		if err := w.pack(v.to, s.Layers, v.m, v.rows, v.columns, v.row0, v.step); err != nil {
			return err
		}
	}
	return nil
}

// PackEnds packs what is before and after the layers. The embedding is left out
// if it is tied and the output matrix is it.
func (w *Weights) PackEnds(embedding, finalNorm, output Matrix) error {
	s := w.shape
	if err := widen(w.finalNorm, finalNorm, s.Hidden); err != nil {
		return err
	}
	if w.embedding != nil {
		if err := embedding.check(s.Vocab, s.Hidden); err != nil {
			return err
		}
		code, _, _ := embedding.elementType()
		C.tdm_to_bf16(w.embedding, (*C.uint8_t)(unsafe.SliceData(embedding.Data)), code, C.size_t(s.Vocab*s.Hidden))
	}
	return w.pack(w.output, s.Head, output, s.Vocab, s.Hidden, 0, Lanes)
}

func widen(to *C.float, m Matrix, n int) error {
	if err := m.check(n, 1); err != nil {
		return err
	}
	code, _, _ := m.elementType()
	C.tdm_to_float(to, (*C.uint8_t)(unsafe.SliceData(m.Data)), code, C.size_t(n))
	return nil
}

func (w *Weights) pack(to unsafe.Pointer, f Format, m Matrix, rows, columns, row0, step int) error {
	if err := m.check(rows, columns); err != nil {
		return err
	}
	code, _, _ := m.elementType()
	w.pool.pack(to, f, (*C.uint8_t)(unsafe.SliceData(m.Data)), code, rows, columns, row0, step)
	return nil
}

// pack packs a matrix on all threads: row r becomes row row0 + r/16*step + r%16.
func (p *Pool) pack(to unsafe.Pointer, f Format, source *C.uint8_t, code C.int, rows, columns, row0, step int) {
	threads, n, k, first, stride := C.int(p.threads), C.int(rows), C.int(columns), C.int(row0), C.int(step)
	switch f {
	case Pairs:
		C.tdm_pack_matrix(p.c, threads, (*C.uint16_t)(to), source, code, n, k, first, stride)
	case Int8:
		C.tdm_pack_int8(p.c, threads, (*C.uint8_t)(to), source, code, n, k, first, stride)
	case Int4:
		C.tdm_pack_int4(p.c, threads, (*C.uint8_t)(to), source, code, n, k, first, stride)
	}
}
