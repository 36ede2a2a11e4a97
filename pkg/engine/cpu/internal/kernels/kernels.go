// Package kernels is the C of the CPU engine and the thinnest Go around it: a
// compute pool, packed weights and a workspace that runs one batch through the
// layers. tdm_kernels.h states the contract of the C, and
// docs/decisions/0002-cpu-arithmetic.md, 0011-int8-weights.md,
// 0012-int4-weights.md and 0013-int8-kv.md what it computes.
//
// Only engine/cpu imports it. It checks sizes where a mistake would write out of
// bounds; what a batch may contain is checked by engine/cpu. It starts threads,
// in C (Pool), and no goroutines.
package kernels

/*
#cgo CFLAGS: -std=c11
#cgo !asan CFLAGS: -O3 -g0
#cgo asan CFLAGS: -O1
#cgo LDFLAGS: -lm -lpthread
#include "tdm_kernels.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// Sizes that the C and the Go side share.
const (
	// Lanes is the width of a vector and the rows of a panel.
	Lanes = C.TDM_LANES
	// SplitTokens is the size of an attention split; block sizes divide it.
	SplitTokens = C.TDM_SPLIT
	// MaxThreads is the most threads of a Pool.
	MaxThreads = C.TDM_MAX_THREADS
	// Group is how many elements share a scale in int8.
	Group = C.TDM_GROUP
)

// Format is how a matrix is packed, which says how it is multiplied, or how keys and
// values are kept.
type Format C.int

// The formats.
const (
	// Pairs is bf16, multiplied with bf16.
	Pairs Format = C.TDM_PAIRS
	// Int8 is multiplied with activations in int8.
	Int8 Format = C.TDM_INT8
	// Int4 too.
	Int4 Format = C.TDM_INT4
)

// groupBytes is what a group of a panel takes; 0 for Pairs, which has none.
func (f Format) groupBytes() int {
	switch f {
	case Int8:
		return C.TDM_GROUP_BYTES
	case Int4:
		return C.TDM_INT4_BYTES
	}
	return 0
}

// PanelBytes is the size of a packed matrix.
func (f Format) PanelBytes(rows, columns int) int {
	if f == Pairs {
		return roundUp(rows, Lanes) * ((columns + 1) / 2) * 4
	}
	return (rows + Lanes - 1) / Lanes * ((columns + Group - 1) / Group) * f.groupBytes()
}

// BytesPerWeight is the size of a weight in whole groups, its share of a scale included.
func (f Format) BytesPerWeight() float64 {
	if f == Pairs {
		return 2
	}
	return float64(f.groupBytes()) / (Lanes * Group)
}

// Set is one implementation of the kernels.
type Set struct {
	c      *C.tdm_kernels
	inTurn bool // of probes: see InTurn
}

// Name is what Select calls it.
func (s Set) Name() string { return C.GoString(s.c.name) }

// Int8 is what it multiplies int8 with: "portable", "avx2", "vnni" or "amx", which
// leaves int4 to VNNI.
func (s Set) Int8() string { return C.GoString(C.tdm_int8_path(s.c)) }

// Usable lists the implementations that this processor runs, best first.
// "portable" is always the last.
func Usable() []Set {
	var sets []Set
	for i := 0; ; i++ {
		var usable C.int
		c := C.tdm_kernels_at(C.int(i), &usable)
		if c == nil {
			return sets
		}
		if usable != 0 {
			sets = append(sets, Set{c: c})
		}
	}
}

// Select finds an implementation by name; "" is the best one. All give the same
// bits.
func Select(name string) (Set, error) {
	sets := Usable()
	names := make([]string, len(sets))
	for i, s := range sets {
		if name == "" || name == s.Name() {
			return s, nil
		}
		names[i] = s.Name()
	}
	return Set{}, fmt.Errorf("instruction set %q is not available here: use one of %s", name, strings.Join(names, ", "))
}

// Memory is zeroed memory outside the Go heap, page-aligned.
type Memory struct {
	start unsafe.Pointer
	size  int
}

// Allocate maps size bytes. Physical memory is taken as it is touched, or populated.
func Allocate(size int) (Memory, error) {
	if size <= 0 {
		return Memory{}, fmt.Errorf("allocate %d bytes: the size must be positive", size)
	}
	p := C.tdm_allocate(C.size_t(size))
	if p == nil {
		return Memory{}, fmt.Errorf("allocate %d bytes: the system has no more memory for this process", size)
	}
	return Memory{p, size}, nil
}

// Borrow is memory of somebody else, who frees it.
func Borrow(memory []byte) Memory {
	return Memory{unsafe.Pointer(unsafe.SliceData(memory)), len(memory)}
}

// Bytes is the memory. It must not be used after Free.
func (m Memory) Bytes() []byte { return unsafe.Slice((*byte)(m.start), m.size) }

// forbid lets AddressSanitizer report whoever touches the bytes from offset first
// up to end.
func (m Memory) forbid(first, end int) {
	C.tdm_forbid(unsafe.Add(m.start, first), C.size_t(end-first))
}

// Free unmaps the memory. Freeing the zero Memory does nothing.
func (m Memory) Free() { C.tdm_release(m.start, C.size_t(m.size)) }

// Pool is a set of compute threads. Run-like calls on one pool must not overlap.
type Pool struct {
	c       *C.tdm_pool
	threads int
}

// NewPool starts threads-1 threads; the caller of each computation is the last.
func NewPool(threads int) (*Pool, error) {
	c := C.tdm_pool_new(C.int(threads))
	if c == nil {
		return nil, fmt.Errorf("start %d compute threads: use 1 to 1023 and check the process's thread limit", threads)
	}
	return &Pool{c, threads}, nil
}

// Threads is the number of threads, the caller included.
func (p *Pool) Threads() int { return p.threads }

// Close ends and joins the threads. No computation may be running.
func (p *Pool) Close() { C.tdm_pool_free(p.c) }

// errShape is a model that the arithmetic below cannot hold.
var errShape = errors.New("model shape is out of range")

// Shape is the part of a model's description that the kernels need.
type Shape struct {
	Hidden, Heads, KVHeads, HeadSize, FFN, Vocab, BlockTokens int
	NormEps                                                   float32
	// QKVBias and QKNorm are whether the model has them.
	QKVBias, QKNorm bool
	// Layers is how the matrices of the layers are packed, Head how the output matrix
	// is: both Pairs, or neither.
	Layers, Head Format
	// KV is how keys and values are kept: Pairs or Int8.
	KV Format
}

func (s Shape) check() error {
	const most = 1 << 24
	for _, n := range []int{s.Hidden, s.Heads, s.KVHeads, s.HeadSize, s.FFN, s.Vocab} {
		if n <= 0 || n > most {
			return fmt.Errorf("%w: size %d is outside 1 to %d", errShape, n, most)
		}
	}
	switch {
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("%w: %d heads are not a multiple of %d KV heads", errShape, s.Heads, s.KVHeads)
	case s.HeadSize%2 != 0:
		return fmt.Errorf("%w: head size %d is odd", errShape, s.HeadSize)
	case s.Heads*s.HeadSize > most || 2*s.KVHeads*s.HeadSize > most:
		return fmt.Errorf("%w: %d heads of %d are too many", errShape, s.Heads, s.HeadSize)
	case (s.Layers == Pairs) != (s.Head == Pairs):
		return fmt.Errorf("%w: formats %d of the layers and %d of the head do not go together", errShape, s.Layers, s.Head)
	case s.KV != Pairs && s.KV != Int8:
		return fmt.Errorf("%w: keys and values cannot have format %d", errShape, s.KV)
	case s.BlockTokens <= 0 || s.BlockTokens%Lanes != 0 || SplitTokens%s.BlockTokens != 0:
		return fmt.Errorf("%w: blocks of %d tokens: use 16, 32, 64, 128 or 256", errShape, s.BlockTokens)
	}
	return nil
}

// SliceBytes is the size of one layer's part of a KV page.
func (s Shape) SliceBytes() int {
	tokens := 2 * s.KVHeads * s.BlockTokens // keys and values of one head
	if s.KV == Int8 {
		return tokens * (s.HeadSize + 2) // a byte an element, and the scale
	}
	return tokens * s.HeadSize * 2
}

func (s Shape) c() C.tdm_shape {
	return C.tdm_shape{
		hidden: C.int(s.Hidden), heads: C.int(s.Heads), kv_heads: C.int(s.KVHeads), head_size: C.int(s.HeadSize),
		ffn: C.int(s.FFN), vocab: C.int(s.Vocab), block_tokens: C.int(s.BlockTokens), norm_eps: C.float(s.NormEps),
	}
}

// windowOf is a sliding window as C wants it; 0 is none.
func windowOf(tokens int) C.int {
	if tokens <= 0 || tokens > C.TDM_SEE_ALL {
		return C.TDM_SEE_ALL
	}
	return C.int(tokens)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
