package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Bounds of an engine's workspace that nobody sets.
const (
	mostHeadRows = 128  // rows of logits computed at once
	mostSlots    = 2048 // results of divided attention
)

// headRows is how many rows of logits an engine computes at once.
func (c Config) headRows() int { return min(max(c.MaxSequences, 32), mostHeadRows) }

// bounds of the input of an engine.
func (c Config) bounds(spec model.Spec) bounds {
	tallTokens := kernels.TallRows / (spec.Heads / spec.KVHeads)
	return bounds{
		rows: c.MaxBatchTokens, sequences: c.MaxSequences,
		blocksPerSequence: kvcache.BlocksFor(spec.ContextTokens, c.BlockTokens),
		passes:            (c.MaxBatchTokens + c.headRows() - 1) / c.headRows(),
		items:             c.MaxSequences + c.MaxBatchTokens/tallTokens + mostSlots,
		graphs:            c.graphRows(),
	}
}

// buffers are where a step's activations are, on the device. Their rows are as far
// apart as shape says; x, qkv, squares, roots and logits are float32, the rest of the rows
// bf16. normed is rows that a product takes: of a norm that it finishes, or finished ones.
type buffers struct {
	x, normed, qkv, q, mixed, inner driver.Address
	narrowX, narrowMixed            driver.Address // rows that the last layer goes on with
	results, sums                   driver.Address // of divided attention
	logits, drawn                   driver.Address
	parts                           driver.Address // of sliced products
	arranged                        driver.Address // rows of wide products
	both, scratch                   driver.Address // of fast
	squares, roots                  driver.Address // of norms that products finish
}

// layBuffers takes them from an arena.
func layBuffers(a *arena, s shape, c Config) buffers {
	rows, head := c.bufferRows(c.MaxBatchTokens), c.bufferRows(c.headRows())
	matrix := func(rows, ld, element int) driver.Address { return a.take(int64(rows) * int64(ld) * int64(element)) }
	// Products read whole tiles of rows.
	tiled := padded(max(rows, head), kernels.Tile)
	b := buffers{
		x: matrix(rows, s.ldHidden, 4), normed: matrix(tiled, s.ldHidden, 2), qkv: matrix(rows, s.ldQKV, 4),
		q: matrix(rows, s.ldQ, 2), mixed: matrix(tiled, s.ldQ, 2), inner: matrix(tiled, s.ldFFN, 2),
		narrowX: matrix(rows, s.ldHidden, 4), narrowMixed: matrix(tiled, s.ldQ, 2),
		results: matrix(mostSlots*s.kvHeads, kernels.ThinRows*s.stride, 4), sums: matrix(mostSlots*s.kvHeads, kernels.ThinRows*2, 4),
		logits: matrix(head, s.ldLogits, 4), drawn: matrix(head, 1, 4),
		parts: a.take(partsBytes(s, rows, head)), squares: matrix(rows, s.ldSquares, 4), roots: matrix(rows, 1, 4),
	}
	if bytes := arrangedBytes(s, c, rows, head); bytes > 0 {
		b.arranged = a.take(bytes)
	}
	if c.usesFast() {
		b.both, b.scratch = matrix(rows, 2*padded(s.ffn, kernels.Tile), 2), a.take(fastWorkspace)
	}
	return b
}

// partsBytes is the most that a product of a step needs for the sums of its slices.
func partsBytes(s shape, rows, head int) int64 {
	return max(
		kernels.PartsBytes(kernels.Store, s.qkv, rows), kernels.PartsBytes(kernels.Add, s.hidden, rows),
		kernels.PartsBytes(kernels.SwiGLU, s.ffn, rows), kernels.PartsBytes(kernels.Store, s.vocab, head),
	)
}

// arrangedBytes is the most that a product of a step needs for its rows in another order.
func arrangedBytes(s shape, c Config, rows, head int) int64 {
	return max(
		kernels.ArrangedBytes(c.Weights.layers(), rows, max(s.ldHidden, s.ldQ, s.ldFFN)),
		kernels.ArrangedBytes(c.Weights.head(), head, s.ldHidden),
	)
}

// WorkspaceBytes is the device memory that an engine computes in, beside weights and KV
// pages. It is 0 for what the engine refuses.
func WorkspaceBytes(spec model.Spec, c Config) int64 {
	if checkModel(spec) != nil {
		return 0
	}
	c = c.withDefaults()
	var a arena
	layBuffers(&a, shapeOf(spec), c)
	layInput(&input{}, &a, c.bounds(spec))
	return a.used
}

// HostBytes is the pinned memory of the host that an engine takes: what goes into a step
// and comes out, and what KV pages are copied by.
func HostBytes(spec model.Spec, c Config) int64 {
	if checkModel(spec) != nil {
		return 0
	}
	c = c.withDefaults()
	var a arena
	layInput(&input{}, &a, c.bounds(spec))
	slice := SliceBytes(spec, c)
	staged, count := stagingSizes(slice)
	return a.used + int64(c.outBytes(shapeOf(spec))) + copiers*int64(bufferBytes(slice)) + int64(staged*count)
}

// outBytes is the size of what comes out of a pass of the head: logits, then its tokens.
func (c Config) outBytes(s shape) int { return 4 * c.headRows() * (s.ldLogits + 1) }

// workspace is the memory of an engine's steps: one piece on the device, and pinned
// memory on the host for what goes in and comes out.
type workspace struct {
	device *driver.Device
	begin  driver.Address
	buffers
	in     *input
	out    *driver.Host // logits of a pass, then its tokens
	tokens int          // where those begin, bytes
}

func newWorkspace(w *Weights, c Config) (_ *workspace, err error) {
	bytes := WorkspaceBytes(w.spec, c)
	if err := w.checkFree(bytes, "an engine's activations"); err != nil {
		return nil, err
	}
	k := &workspace{device: w.device}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("memory for a batch of %d tokens: %w", c.MaxBatchTokens, err), k.free())
		}
	}()
	if k.begin, err = w.device.Allocate(bytes); err != nil {
		return nil, err
	}
	a := arena{base: k.begin}
	k.buffers = layBuffers(&a, w.shape, c)
	if k.in, err = newInput(w.device, &a, c.bounds(w.spec)); err != nil {
		return nil, err
	}
	k.tokens = 4 * c.headRows() * w.shape.ldLogits
	if k.out, err = w.device.AllocateHost(c.outBytes(w.shape)); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *workspace) free() error {
	var errs []error
	if k.begin != 0 {
		errs = append(errs, k.device.Free(k.begin))
	}
	if k.in != nil {
		errs = append(errs, k.in.host.Free())
	}
	if k.out != nil {
		errs = append(errs, k.out.Free())
	}
	return errors.Join(errs...)
}
