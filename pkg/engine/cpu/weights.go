package cpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Weights are a model's weights, packed for the processor, and the compute
// threads that use them: one per process and model, however many engines. It is
// safe for concurrent use.
type Weights struct {
	spec   model.Spec
	kind   WeightType
	packed *kernels.Weights
	pool   *kernels.Pool
	set    kernels.Set
	turn   *semaphore.Weighted // held by who computes; first come, first served
	beside *Weights            // whose pool and turn these are; nil: their own
	cached bool                // read from Config.WeightCache

	mu      sync.Mutex
	engines int
	limits  latency.Limits
	reading int // kernels.Reached.ReadVariant, when limits were measured last
	closed  bool
}

// forLoading checks c and fills in the zeros of what Load looks at.
func (c Config) forLoading() (Config, error) {
	if c.Threads < 0 {
		return c, fmt.Errorf("%d threads: use 0 for all cores, or a positive number", c.Threads)
	}
	c = c.withDefaults(runtime.GOMAXPROCS(0))
	if c.Progress == nil {
		c.Progress = func(int64, int64) {}
	}
	if c.Warn == nil {
		c.Warn = func(error) {}
	}
	return c, c.Weights.Validate()
}

// Load packs the weights of m, or reads them from where they are kept, and starts the
// compute threads. m is not needed any more once it returns. The context is looked at
// between layers, and between pieces of a MiB of what is kept.
func Load(ctx context.Context, m *model.Model, config Config) (*Weights, error) {
	config, err := config.forLoading()
	if err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	set, err := kernels.Select(config.ISA)
	if err != nil {
		return nil, fmt.Errorf("load weights: %w", err)
	}
	spec := m.Spec()
	w := &Weights{spec: spec, kind: config.Weights, set: set, beside: config.Beside}
	if err := w.startThreads(config.Threads); err != nil {
		return nil, fmt.Errorf("load weights of %s: %w", spec.Name, err)
	}
	if w.packed, err = kernels.NewWeights(w.pool, shapeOf(spec, config.Weights, Config{}.withDefaults(1)), spec.Layers, spec.TiedEmbeddings); err != nil {
		w.endThreads()
		return nil, fmt.Errorf("load weights of %s: %w", spec.Name, err)
	}
	if err := w.loadInTurn(ctx, m, config); err != nil {
		w.packed.Free()
		w.endThreads()
		return nil, fmt.Errorf("load weights of %s: %w", spec.Name, err)
	}
	return w, nil
}

// startThreads starts the compute threads, or joins those of other weights.
func (w *Weights) startThreads(n int) (err error) {
	if w.beside == nil {
		w.turn = semaphore.NewWeighted(1)
		w.pool, err = kernels.NewPool(n)
		return err
	}
	w.pool, w.turn = w.beside.pool, w.beside.turn
	return w.beside.acquire()
}

func (w *Weights) endThreads() {
	if w.beside == nil {
		w.pool.Close()
		return
	}
	w.beside.release()
}

// loadInTurn loads while nobody else computes with the threads.
func (w *Weights) loadInTurn(ctx context.Context, m *model.Model, config Config) error {
	if err := w.turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for the compute threads: %w", err)
	}
	defer w.turn.Release(1)
	return w.load(ctx, m, config)
}

func (w *Weights) pack(ctx context.Context, m *model.Model, progress func(done, total int64)) error {
	layers := make([]model.LayerWeights, w.spec.Layers)
	ends := model.DataBytes(m.FinalNorm(), m.Output())
	if !w.spec.TiedEmbeddings || w.kind != BF16 {
		ends += model.DataBytes(m.Embedding())
	}
	total := ends
	for i := range layers {
		l := m.Layer(i)
		layers[i] = l
		total += l.Bytes()
	}
	if err := w.packed.PackEnds(matrix(m.Embedding()), matrix(m.FinalNorm()), matrix(m.Output())); err != nil {
		return fmt.Errorf("embedding, last norm and output: %w", err)
	}
	done := ends
	progress(done, total)
	for i, l := range layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := w.packed.PackLayer(i, kernels.LayerMatrices{
			AttentionNorm: matrix(l.AttnNorm), Q: matrix(l.Q), K: matrix(l.K), V: matrix(l.V), O: matrix(l.O),
			FFNNorm: matrix(l.FFNNorm), Gate: matrix(l.Gate), Up: matrix(l.Up), Down: matrix(l.Down),
			QBias: matrix(l.QBias), KBias: matrix(l.KBias), VBias: matrix(l.VBias),
			QNorm: matrix(l.QNorm), KNorm: matrix(l.KNorm), Window: w.spec.Window(i),
		})
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		done += l.Bytes()
		progress(done, total)
	}
	runtime.KeepAlive(m) // its tensors are mapped until here
	return nil
}

// Spec describes the model.
func (w *Weights) Spec() model.Spec { return w.spec }

// Type is the type that they are packed in.
func (w *Weights) Type() WeightType { return w.kind }

// Bytes is the size of the packed weights in memory.
func (w *Weights) Bytes() int64 { return int64(w.packed.Bytes()) }

// Threads is the number of compute threads.
func (w *Weights) Threads() int { return w.pool.Threads() }

// ISA names the instruction set in use.
func (w *Weights) ISA() string { return w.set.Name() }

// errClosed is a use after Close.
var errClosed = errors.New("closed")

// acquire counts an engine in.
func (w *Weights) acquire() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("weights of %s: %w", w.spec.Name, errClosed)
	}
	w.engines++
	return nil
}

func (w *Weights) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engines--
}

// Close joins the threads and frees the weights. It refuses while engines, or a
// Reading, are open; closing twice does nothing.
func (w *Weights) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.engines > 0 {
		return fmt.Errorf("close weights of %s: %d engines or other readers still use them: close those first", w.spec.Name, w.engines)
	}
	if !w.closed {
		w.closed = true
		w.endThreads()
		w.packed.Free()
	}
	return nil
}

// shapeOf is what the kernels need of a model with weights of a type, and of a c with
// its zeros filled in: blocks and how they are kept.
func shapeOf(s model.Spec, kind WeightType, c Config) kernels.Shape {
	layers, head := kind.formats()
	return kernels.Shape{
		Hidden: s.HiddenSize, Heads: s.Heads, KVHeads: s.KVHeads, HeadSize: s.HeadSize,
		FFN: s.FFNSize, Vocab: s.VocabSize, BlockTokens: c.BlockTokens, NormEps: s.RMSNormEps,
		QKVBias: s.QKVBias, QKNorm: s.QKNorm, Layers: layers, Head: head, KV: c.KV.format(),
	}
}

// matrix sees a tensor as a matrix; a vector has one column.
func matrix(t model.Tensor) kernels.Matrix {
	m := kernels.Matrix{Type: t.DType.String(), Columns: 1, Data: t.Data}
	if len(t.Shape) > 0 {
		m.Rows = t.Shape[0]
	}
	if len(t.Shape) > 1 {
		m.Columns = t.Shape[1]
	}
	return m
}
