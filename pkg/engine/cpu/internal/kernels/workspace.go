package kernels

/*
#include "tdm_kernels.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// BatchBounds are what one call of a workspace may hold.
type BatchBounds struct {
	Rows, Sequences, HeadRows int
	// BlocksPerSequence is the longest block table.
	BlocksPerSequence int
}

// Workspace holds everything that a batch needs on its way through the layers:
// activations and tables, outside the Go heap. One goroutine at a time uses it,
// and one workspace of a pool at a time computes.
type Workspace struct {
	weights    *Weights
	shape      Shape
	bounds     BatchBounds
	threads    int
	memory     Memory
	step       *C.tdm_step
	tokens     []int32
	rowOf      []int32
	mirror     []uintptr // of each row: a slice elsewhere
	blocks     []kvcache.BlockID
	x          []float32
	q          []uint16
	sequences  []C.tdm_sequence
	items      []C.tdm_item
	cos, sin   []float32
	logits     []float32
	rows       int
	sequenceN  int
	blockN     int
	itemTokens int
	unfinished []int32 // parts of each divided item
	results    int     // floats for the results of divided items
}

// NewWorkspace allocates for bounds. pages is the KV memory, one page after the
// other, all layers of a page side by side. shape is that of the weights, but for
// BlockTokens and KV.
func NewWorkspace(w *Weights, set Set, threads int, shape Shape, bounds BatchBounds, pages Memory) (*Workspace, error) {
	if threads > w.pool.threads {
		return nil, fmt.Errorf("workspace for %d threads, but the pool has %d", threads, w.pool.threads)
	}
	if shape.Layers != w.shape.Layers || shape.Head != w.shape.Head {
		return nil, fmt.Errorf("%w: the weights have another type", errShape)
	}
	k, s, err := planWorkspace(threads, shape, bounds)
	if err != nil {
		return nil, err
	}
	k.weights = w
	s.kernels, s.pool = set.c, w.pool.c
	s.pages, s.page_bytes = (*C.uint8_t)(pages.start), C.size_t(w.count*shape.SliceBytes())
	if k.memory, err = build(func(a *arena) { k.lay(a, &s) }); err != nil {
		return nil, fmt.Errorf("memory for a batch of %d tokens: %w", bounds.Rows, err)
	}
	*k.step = s
	k.logits = unsafe.Slice((*float32)(unsafe.Pointer(s.logits)), bounds.HeadRows*int(s.ldl))
	return k, nil
}

// WorkspaceBytes is what NewWorkspace allocates.
func WorkspaceBytes(threads int, shape Shape, bounds BatchBounds) (int, error) {
	k, s, err := planWorkspace(threads, shape, bounds)
	if err != nil {
		return 0, err
	}
	return measure(func(a *arena) { k.lay(a, &s) }), nil
}

// Bytes is the size of the workspace.
func (k *Workspace) Bytes() int { return k.memory.size }

// planWorkspace says how a workspace is divided, which depends on no weights.
func planWorkspace(threads int, shape Shape, bounds BatchBounds) (*Workspace, C.tdm_step, error) {
	if err := shape.check(); err != nil {
		return nil, C.tdm_step{}, err
	}
	if bounds.Rows <= 0 || bounds.Sequences <= 0 || bounds.HeadRows <= 0 || bounds.BlocksPerSequence <= 0 || threads <= 0 {
		return nil, C.tdm_step{}, fmt.Errorf("workspace of %+v for %d threads: every size must be above 0", bounds, threads)
	}
	q, kv := shape.Heads*shape.HeadSize, shape.KVHeads*shape.HeadSize
	const align = 32 // elements: whole cache lines a row
	s := C.tdm_step{
		threads: C.int(threads), shape: shape.c(), layers_packed: C.int(shape.Layers), head_packed: C.int(shape.Head), kv: C.int(shape.KV), slice_bytes: C.size_t(shape.SliceBytes()),
		ldx: C.size_t(roundUp(shape.Hidden, align)), ldn: C.size_t(roundUp(shape.Hidden, align)),
		ldqkv: C.size_t(roundUp(q+2*kv, align)), ldq: C.size_t(roundUp(q, align)),
		ldf: C.size_t(roundUp(shape.FFN, align)), ldl: C.size_t(roundUp(shape.Vocab, align)),
		scratch_floats: C.tdm_attention_scratch(C.int(shape.Heads), C.int(shape.KVHeads), C.int(shape.HeadSize)),
	}
	k := &Workspace{shape: shape, bounds: bounds}
	k.itemTokens = int(C.tdm_attention_positions(C.int(shape.Heads), C.int(shape.KVHeads)))
	k.threads, k.results = threads, resultFloats(threads, shape, bounds)
	return k, s, nil
}

// lay takes the parts from an arena.
func (k *Workspace) lay(a *arena, s *C.tdm_step) {
	bounds, half := k.bounds, k.shape.HeadSize/2
	k.step = take[C.tdm_step](a, 1)
	s.x = goSlice[C.float](a, bounds.Rows*int(s.ldx), &k.x)
	s.normed = take[C.uint16_t](a, max(bounds.Rows, bounds.HeadRows)*int(s.ldn))
	s.qkv = take[C.float](a, bounds.Rows*int(s.ldqkv))
	s.q = goSlice[C.uint16_t](a, bounds.Rows*int(s.ldq), &k.q)
	s.mixed = take[C.uint16_t](a, bounds.Rows*int(s.ldq))
	s.inner = take[C.uint16_t](a, bounds.Rows*int(s.ldf))
	if k.shape.Layers != Pairs {
		groups := (max(k.shape.Hidden, k.shape.Heads*k.shape.HeadSize, k.shape.FFN) + Group - 1) / Group
		rows := max(bounds.Rows, bounds.HeadRows)
		s.quantized.values = take[C.int8_t](a, rows*groups*Group)
		s.quantized.scales = take[C.float](a, rows*groups)
	}
	s.scratch = take[C.float](a, int(s.threads)*int(s.scratch_floats))
	s.results = take[C.float](a, k.results)
	s.unfinished = goSlice[C.int](a, k.mostDivided(), &k.unfinished)
	s.logits = take[C.float](a, bounds.HeadRows*int(s.ldl))
	s.tokens = goSlice[C.int32_t](a, bounds.Rows, &k.tokens)
	s.row_sequence = goSlice[C.int32_t](a, bounds.Rows, &k.rowOf)
	s.mirror = goSlice[*C.uint8_t](a, bounds.Rows, &k.mirror)
	s.blocks = goSlice[C.int32_t](a, bounds.Sequences*bounds.BlocksPerSequence, &k.blocks)
	s.sequences = goSlice[C.tdm_sequence](a, bounds.Sequences, &k.sequences)
	s.item = goSlice[C.tdm_item](a, k.mostItems(), &k.items)
	s.cos = goSlice[C.float](a, bounds.Rows*half, &k.cos)
	s.sin = goSlice[C.float](a, bounds.Rows*half, &k.sin)
}

// goSlice takes n elements and lets Go see them as a slice too.
func goSlice[T, G any](a *arena, n int, slice *[]G) *T {
	p := take[T](a, n)
	if p != nil {
		*slice = unsafe.Slice((*G)(unsafe.Pointer(p)), n)
	}
	return p
}

// Free unmaps the workspace.
func (k *Workspace) Free() { k.memory.Free() }

// Reset starts a new batch.
func (k *Workspace) Reset() { k.rows, k.sequenceN, k.blockN = 0, 0, 0 }

// Add appends tokens of one sequence at positions from start on. blocks is as
// much of its table as covers them; cos and sin are filled by the caller, for
// HeadSize/2 angles a token.
func (k *Workspace) Add(tokens []int32, start int, blocks []kvcache.BlockID) (cos, sin []float32, err error) {
	if k.rows+len(tokens) > k.bounds.Rows || k.sequenceN >= k.bounds.Sequences || len(blocks) > k.bounds.BlocksPerSequence {
		return nil, nil, fmt.Errorf("%d more tokens in %d blocks exceed the workspace's %+v", len(tokens), len(blocks), k.bounds)
	}
	k.sequences[k.sequenceN] = C.tdm_sequence{
		row0: C.int(k.rows), start: C.int(start), count: C.int(len(tokens)), table: C.int(k.blockN),
	}
	copy(k.tokens[k.rows:], tokens)
	for i := range tokens {
		k.rowOf[k.rows+i] = int32(k.sequenceN)
	}
	clear(k.mirror[k.rows : k.rows+len(tokens)])
	k.blockN += copy(k.blocks[k.blockN:], blocks)
	half := k.shape.HeadSize / 2
	first, last := k.rows*half, (k.rows+len(tokens))*half
	k.rows += len(tokens)
	k.sequenceN++
	return k.cos[first:last], k.sin[first:last], nil
}

// Mirror has the next layer's keys and values of sequence i of the batch, in the order of Add, be
// written into other slices besides, which are not of the Go heap: slice(b) is that of block b of its
// table, nil if there is none. Without slice they are written into no other any more.
func (k *Workspace) Mirror(i int, slice func(block int) []byte) {
	q, tokens := k.sequences[i], k.shape.BlockTokens
	rows := k.mirror[q.row0 : q.row0+q.count]
	if slice == nil {
		clear(rows)
		return
	}
	for at := 0; at < len(rows); {
		block := (int(q.start) + at) / tokens
		start := uintptr(unsafe.Pointer(unsafe.SliceData(slice(block))))
		for past := min((block+1)*tokens-int(q.start), len(rows)); at < past; at++ {
			rows[at] = start
		}
	}
}

// Embed plans the batch's attention and fills the residual stream.
func (k *Workspace) Embed() {
	k.plan()
	var panels *C.uint32_t
	if k.weights.embedding == nil {
		panels = (*C.uint32_t)(k.weights.output)
	}
	C.tdm_embed(k.step, panels, k.weights.embedding)
}

// Keys computes the queries, keys and values of layer i for the batch. After it the
// layer's part of the pages is complete.
func (k *Workspace) Keys(i int) { C.tdm_layer_keys(k.step, k.layer(i), C.int(i)) }

// Products and then Rotate are Keys. Only Rotate writes into pages, which takes a small part of
// the time.
func (k *Workspace) Products(i int) { C.tdm_layer_products(k.step, k.layer(i), C.int(i)) }

// Rotate is the second part of Keys.
func (k *Workspace) Rotate() { C.tdm_layer_rotate(k.step) }

func (k *Workspace) layer(i int) *C.tdm_layer_weights {
	return &unsafe.Slice(k.weights.layers, k.weights.count)[i]
}

// Narrow leaves of sequence i of the batch, in the order of Add, only the last
// keep(i) rows: between Keys and Rest of the last layer, of which nobody needs more
// than those whose logits are wanted. It returns how many rows are left, all
// sequences together; their order stays.
func (k *Workspace) Narrow(keep func(sequence int) int) int {
	row := 0
	for i := range k.sequences[:k.sequenceN] {
		q := &k.sequences[i]
		n := min(max(keep(i), 0), int(q.count))
		drop := int(q.count) - n
		from := int(q.row0) + drop
		if n > 0 && row != from {
			ldx, ldq := int(k.step.ldx), int(k.step.ldq)
			copy(k.x[row*ldx:(row+n)*ldx], k.x[from*ldx:])
			copy(k.q[row*ldq:(row+n)*ldq], k.q[from*ldq:])
		}
		for r := row; r < row+n; r++ {
			k.rowOf[r] = int32(i)
		}
		q.row0, q.start, q.count = C.int(row), q.start+C.int(drop), C.int(n)
		row += n
	}
	k.rows = row
	k.plan()
	return row
}

// LayersAtOnce is how many layers from i on take some milliseconds, 1 to most: what
// to give Layers when it should be possible to stop in between.
func (k *Workspace) LayersAtOnce(i, most int) int {
	return int(C.tdm_layers_at_once(k.step, k.layer(i), C.int(most)))
}

// Layers runs n layers, 1 or more, from i on, each as Keys and Rest would.
func (k *Workspace) Layers(i, n int) {
	C.tdm_layers(k.step, &unsafe.Slice(k.weights.layers, k.weights.count)[i : i+n][0], C.int(i), C.int(n))
}

// Rest runs what else there is of the layer that Keys began.
func (k *Workspace) Rest() { C.tdm_layer_rest(k.step) }

// Kept is which rows of the batch are left of sequence i, in the order of Add.
func (k *Workspace) Kept(i int) (first, n int) {
	return int(k.sequences[i].row0), int(k.sequences[i].count)
}

// Normed writes the final norm of a row to state, which is Hidden long. It is computed in
// float64, one operation after the other, and so the same everywhere: the model's own norm, in
// Head, rounds to bf16 what goes into the output matrix.
func (k *Workspace) Normed(row int, state []float64) {
	x := k.x[row*int(k.step.ldx):][:k.shape.Hidden]
	sum := 0.0
	for _, v := range x {
		square := float64(v) * float64(v) // exact
		sum += square
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+float64(k.shape.NormEps))
	weight := unsafe.Slice((*float32)(unsafe.Pointer(k.weights.finalNorm)), len(x))
	for i, v := range x {
		scaled := float64(v) * scale
		state[i] = scaled * float64(weight[i])
	}
}

// Head computes the logits of n rows of the batch from row first on, at most
// BatchBounds.HeadRows.
func (k *Workspace) Head(first, n int) {
	C.tdm_head(k.step, k.weights.finalNorm, k.weights.output, C.int(first), C.int(n))
}

// Logits are those of the i-th row of the last Head, until the next one.
func (k *Workspace) Logits(i int) []float32 {
	stride := int(k.step.ldl)
	return k.logits[i*stride : i*stride+k.shape.Vocab]
}
