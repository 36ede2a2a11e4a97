package kernels

/*
#include "tdm_limits.h"
#include "tdm_probe.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// The probes run one kernel each, on the calling thread. They are what tests
// compare implementations with; the engine does not use them. bf16 values are
// given as their bits.

// ProbeProduct is a times the transpose of w, a of rows x k, w of n x k, added
// to out: [rows][n].
func (s Set) ProbeProduct(a []uint16, rows, k int, w []uint16, n int, out []float32) error {
	if len(out) != rows*n {
		return fmt.Errorf("%d outputs for %d x %d", len(out), rows, n)
	}
	return s.probeProduct(a, rows, k, [][]uint16{w}, n, C.TDM_ADD, unsafe.Pointer(unsafe.SliceData(out)))
}

// ProbeSwiGLU is silu(a*gate) * (a*up), rounded: [rows][n].
func (s Set) ProbeSwiGLU(a []uint16, rows, k int, gate, up []uint16, n int, out []uint16) error {
	if len(out) != rows*n {
		return fmt.Errorf("%d outputs for %d x %d", len(out), rows, n)
	}
	return s.probeProduct(a, rows, k, [][]uint16{gate, up}, n, C.TDM_SWIGLU, unsafe.Pointer(unsafe.SliceData(out)))
}

func (s Set) probeProduct(a []uint16, rows, k int, weights [][]uint16, n, mode int, out unsafe.Pointer) error {
	panels, err := packed(Pairs, weights, n, k)
	if err != nil {
		return err
	}
	defer panels.Free()
	pairs, perMatrix := (k+1)/2, roundUp(n, Lanes)
	padded := make([]uint32, rows*pairs)
	for r := range rows {
		for i := range k {
			padded[r*pairs+i/2] |= uint32(a[r*k+i]) << (16 * (i % 2))
		}
	}
	C.tdm_probe_product(s.c, (*C.uint32_t)(unsafe.SliceData(padded)), C.size_t(pairs), (*C.uint32_t)(panels.start), C.size_t(pairs),
		C.int(rows), C.int(len(weights)*perMatrix/Lanes), C.int(n), C.int(mode), out, C.size_t(n))
	return nil
}

// ProbeNorm is RMSNorm of one row.
func (s Set) ProbeNorm(x, weight []float32, eps float32) []uint16 {
	out := make([]uint16, len(x))
	C.tdm_probe_norm(s.c, (*C.uint16_t)(unsafe.SliceData(out)), (*C.float)(unsafe.SliceData(x)),
		(*C.float)(unsafe.SliceData(weight)), C.int(len(x)), C.float(eps))
	return out
}

// ProbeExp is the exponential.
func (s Set) ProbeExp(x []float32) []float32 {
	out := make([]float32, len(x))
	C.tdm_probe_exps(s.c, (*C.float)(unsafe.SliceData(out)), (*C.float)(unsafe.SliceData(x)), C.int(len(x)))
	return out
}

// ProbeAdjust adds the bias, if there is one, to one token's queries, keys and
// values (qkv) and normalises the heads of queries and keys, if there are weights
// for that.
func (s Set) ProbeAdjust(shape Shape, qkv, bias, qNorm, kNorm []float32) {
	C.tdm_probe_adjust(s.c, (*C.float)(unsafe.SliceData(qkv)), (*C.float)(unsafe.SliceData(bias)),
		(*C.float)(unsafe.SliceData(qNorm)), (*C.float)(unsafe.SliceData(kNorm)), C.float(shape.NormEps),
		C.int(shape.Heads), C.int(shape.KVHeads), C.int(shape.HeadSize))
}

// ProbeRotate turns one token's queries, keys and values (qkv) into rotated
// queries and writes key and value into slice, and into mirror unless it is nil, at token of
// its block.
func (s Set) ProbeRotate(shape Shape, qkv, cos, sin []float32, slice, mirror []byte, token int) (q []uint16) {
	q = make([]uint16, shape.Heads*shape.HeadSize)
	qkv = slices.Clone(qkv) // which may be spoilt
	C.tdm_probe_rotate(s.c, (*C.float)(unsafe.SliceData(qkv)), (*C.float)(unsafe.SliceData(cos)), (*C.float)(unsafe.SliceData(sin)),
		(*C.uint16_t)(unsafe.SliceData(q)), C.int(shape.Heads), C.int(shape.KVHeads), C.int(shape.HeadSize),
		C.int(shape.BlockTokens), C.int(shape.KV), (*C.uint8_t)(unsafe.SliceData(slice)), (*C.uint8_t)(unsafe.SliceData(mirror)), C.int(token))
	return q
}

// ProbeAttention is attention of tokens at positions from start on, over pages
// of one layer; q holds [token][head][dimension]. window is the tokens that each
// sees, 0 for all.
func (s Set) ProbeAttention(shape Shape, q []uint16, pages []byte, blocks []kvcache.BlockID, start, window int, scale float32) []uint16 {
	return s.ProbeDivided(shape, q, pages, blocks, start, window, scale, 0)
}

// ProbeDivided is ProbeAttention with each item divided into parts, the last of which is
// computed first; 0 leaves them whole.
func (s Set) ProbeDivided(shape Shape, q []uint16, pages []byte, blocks []kvcache.BlockID, start, window int, scale float32, parts int) []uint16 {
	width := shape.Heads * shape.HeadSize
	out := make([]uint16, len(q))
	most := int(C.tdm_attention_positions(C.int(shape.Heads), C.int(shape.KVHeads)))
	scratch := make([]float32, int(C.tdm_attention_scratch(C.int(shape.Heads), C.int(shape.KVHeads), C.int(shape.HeadSize))))
	splits := (start + len(q)/width + SplitTokens - 1) / SplitTokens
	if parts == 0 {
		splits = 0
	}
	results := make([]float32, splits*resultSize(shape, most))
	for i := range results {
		results[i] = float32(math.NaN()) // what nobody writes must not be read
	}
	for at := 0; at < len(q)/width; at += most {
		for h := range shape.KVHeads {
			C.tdm_probe_attention(s.c, (*C.uint16_t)(unsafe.SliceData(q[at*width:])), (*C.uint16_t)(unsafe.SliceData(out[at*width:])),
				(*C.uint8_t)(unsafe.SliceData(pages)), C.size_t(shape.SliceBytes()), (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(blocks))),
				C.int(shape.Heads), C.int(shape.KVHeads), C.int(shape.HeadSize), C.int(shape.BlockTokens), C.int(shape.KV), C.float(scale),
				windowOf(window), C.int(h), C.int(start+at), C.int(min(most, len(q)/width-at)),
				C.int(parts), (*C.float)(unsafe.SliceData(results)), (*C.float)(unsafe.SliceData(scratch)))
		}
	}
	return out
}

// ProbeQuantize turns a row of bf16 into groups in int8.
func (s Set) ProbeQuantize(x []uint16) (values []int8, scales []float32) {
	groups := (len(x) + Group - 1) / Group
	values, scales = make([]int8, groups*Group), make([]float32, groups)
	C.tdm_probe_quantize(s.c, (*C.int8_t)(unsafe.SliceData(values)), (*C.float)(unsafe.SliceData(scales)),
		(*C.uint16_t)(unsafe.SliceData(x)), C.int(len(x)))
	return values, scales
}

// InTurn is s with probes of one row in Int8 and Int4 that read a unit's panels one after
// the other, or side by side: a processor has its own way, and tests want both.
func (s Set) InTurn(is bool) Set {
	s.inTurn = is
	return s
}

// ProbeProductIn is ProbeProduct in Int8 or Int4: both matrices are quantised, w as the
// checkpoint's matrix of bf16 that it is. The product is added to out, or replaces it.
func (s Set) ProbeProductIn(f Format, a []uint16, rows, k int, w []uint16, n int, add bool, out []float32) error {
	if len(out) != rows*n {
		return fmt.Errorf("%d outputs for %d x %d", len(out), rows, n)
	}
	mode := C.TDM_STORE
	if add {
		mode = C.TDM_ADD
	}
	return s.probeProductIn(f, a, rows, k, [][]uint16{w}, n, mode, unsafe.Pointer(unsafe.SliceData(out)))
}

// ProbeSwiGLUIn is ProbeSwiGLU in Int8 or Int4.
func (s Set) ProbeSwiGLUIn(f Format, a []uint16, rows, k int, gate, up []uint16, n int, out []uint16) error {
	if len(out) != rows*n {
		return fmt.Errorf("%d outputs for %d x %d", len(out), rows, n)
	}
	return s.probeProductIn(f, a, rows, k, [][]uint16{gate, up}, n, C.TDM_SWIGLU, unsafe.Pointer(unsafe.SliceData(out)))
}

func (s Set) probeProductIn(f Format, a []uint16, rows, k int, weights [][]uint16, n, mode int, out unsafe.Pointer) error {
	panels, err := packed(f, weights, n, k)
	if err != nil {
		return err
	}
	defer panels.Free()
	var values []int8
	var scales []float32
	for r := range rows {
		v, s := s.ProbeQuantize(a[r*k : (r+1)*k])
		values, scales = append(values, v...), append(scales, s...)
	}
	inTurn := C.int(0)
	if s.inTurn {
		inTurn = 1
	}
	C.tdm_probe_product_quantized(s.c, C.int(f), inTurn, (*C.int8_t)(unsafe.SliceData(values)), (*C.float)(unsafe.SliceData(scales)), (*C.uint8_t)(panels.start),
		C.size_t((k+Group-1)/Group), C.int(rows), C.int(len(weights)*roundUp(n, Lanes)/Lanes), C.int(n), C.int(mode), out, C.size_t(n))
	return nil
}

// ProbePanels packs n rows of k elements of bf16. The memory is the caller's to free.
func ProbePanels(f Format, w []uint16, n, k int) (Memory, error) {
	return packed(f, [][]uint16{w}, n, k)
}

// packed packs matrices of one shape, their panels in turns.
func packed(f Format, weights [][]uint16, n, k int) (Memory, error) {
	pool, err := NewPool(1)
	if err != nil {
		return Memory{}, err
	}
	defer pool.Close()
	panels, err := Allocate(f.PanelBytes(len(weights)*roundUp(n, Lanes), k))
	if err != nil {
		return Memory{}, err
	}
	for i, w := range weights {
		data, err := littleEndian(w, n, k)
		if err != nil {
			panels.Free()
			return Memory{}, err
		}
		pool.pack(panels.start, f, (*C.uint8_t)(unsafe.SliceData(data)), C.TDM_BF16, n, k, i*Lanes, len(weights)*Lanes)
	}
	return panels, nil
}

// littleEndian is a matrix as a checkpoint has it.
func littleEndian(w []uint16, n, k int) ([]byte, error) {
	if len(w) != n*k {
		return nil, fmt.Errorf("%d weights for %d x %d", len(w), n, k)
	}
	data := make([]byte, 0, 2*len(w))
	for _, x := range w {
		data = binary.LittleEndian.AppendUint16(data, x)
	}
	return data, nil
}

// ProbeSpeed is the least time of so many products of rows x k by k x n, on the calling
// thread. What they compute does not matter.
func (s Set) ProbeSpeed(f Format, rows, k, n, times int) (time.Duration, error) {
	weights := f.PanelBytes(n, k)
	values, outputs := roundUp(2*rows*roundUp(k, Group), 64), 4*rows*n // scales lie behind them
	memory, err := Allocate(roundUp(weights, 64) + 2*values + outputs)
	if err != nil {
		return 0, err
	}
	defer memory.Free()
	C.tdm_limit_touch((*C.uint8_t)(memory.start), C.size_t(memory.size))
	a := unsafe.Add(memory.start, roundUp(weights, 64))
	scales, out := unsafe.Add(a, values), unsafe.Add(a, 2*values)
	panels, pairs, groups := roundUp(n, Lanes)/Lanes, (k+1)/2, (k+Group-1)/Group
	var least time.Duration
	for i := range times {
		began := time.Now()
		if f != Pairs {
			C.tdm_probe_product_quantized(s.c, C.int(f), C.tdm_one_stream(), (*C.int8_t)(a), (*C.float)(scales), (*C.uint8_t)(memory.start), C.size_t(groups),
				C.int(rows), C.int(panels), C.int(n), C.TDM_STORE, out, C.size_t(n))
		} else {
			C.tdm_probe_product(s.c, (*C.uint32_t)(a), C.size_t(pairs), (*C.uint32_t)(memory.start), C.size_t(pairs),
				C.int(rows), C.int(panels), C.int(n), C.TDM_STORE, out, C.size_t(n))
		}
		if took := time.Since(began); i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}
