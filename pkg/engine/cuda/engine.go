package cuda

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// cudaEngine is an engine.Engine. Steps of different engines of one device run beside
// each other, each on a stream of its own.
type cudaEngine struct {
	launcher
	capacity engine.Capacity
	batches  *engine.Validator
	planner  planner
	stream   *driver.Stream
	layers   []*driver.Event // behind the keys and values of each layer
	finished *driver.Event   // behind the last layer
	graphs   graphs
	kv       *pages
	sampler  *sampler.Sampler
	taken    []row   // the rows that become logits
	flight   flight  // in use where flying points to it
	flying   *flight // nil: no step is under way

	loss    *loss
	closing sync.Mutex // held by Step, from Start to Wait, and by Close
	closed  bool
}

// NewEngine makes an engine with KV pages of its own on shared weights. It takes all the
// device memory that its steps need, so that none can run out of it.
func (w *Weights) NewEngine(config Config) (_ engine.Engine, err error) {
	config, err = config.complete(w.spec)
	if err == nil {
		err = config.checkWeights(w.kind)
	}
	if err != nil {
		return nil, fmt.Errorf("new engine for %s: %w", w.spec.Name, err)
	}
	if err := w.acquire(); err != nil {
		return nil, fmt.Errorf("new engine: %w", err)
	}
	e := &cudaEngine{launcher: launcher{weights: w, config: config, program: w.device.NewProgram()}, sampler: sampler.New(), loss: newLoss()}
	w.follow(e.loss)
	if err := e.open(); err != nil {
		return nil, fmt.Errorf("new engine for %s: %w", w.spec.Name, errors.Join(err, e.free()))
	}
	return e, nil
}

// open makes the parts of a new engine.
func (e *cudaEngine) open() (err error) {
	spec, c := e.weights.spec, e.config
	layout := c.layout(spec, e.weights.kind)
	if int64(layout.PageBytes()) > math.MaxUint32 { // as attention multiplies by it
		return fmt.Errorf("KV blocks of %d tokens take %d bytes, more than the limit of 4 GiB: use smaller blocks", c.BlockTokens, layout.PageBytes())
	}
	e.capacity = engine.Capacity{
		Blocks: c.Blocks, MaxBatchTokens: c.MaxBatchTokens, MaxSequences: c.MaxSequences,
		Threads: e.weights.device.Info().Multiprocessors, Layout: layout,
		BytesPerWeight: bytesPerWeight(spec, e.weights.kind), KVTokenBytes: float64(layout.SliceBytes) / float64(layout.BlockTokens),
	}
	e.batches = engine.NewValidator(e.capacity, spec)
	e.scale = kernels.Scale(spec.HeadSize)
	if e.attend, err = e.weights.attention(c.KV); err != nil {
		return err
	}
	if e.thinBlocks, e.tallBlocks, err = e.attend.Blocks(spec.KVHeads); err != nil {
		return err
	}
	e.planner = planner{group: spec.Heads / spec.KVHeads, window: widest(spec), slots: mostSlots, thinBlocks: e.thinBlocks, tallBlocks: e.tallBlocks}
	if e.workspace, err = newWorkspace(e.weights, c); err != nil {
		return err
	}
	if e.kv, err = newPages(e.weights, layout, c.Blocks, e.loss); err != nil {
		return err
	}
	e.pages = e.kv.memory
	if e.stream, err = e.weights.device.NewStream(c.priority()); err != nil {
		return err
	}
	for range spec.Layers {
		event, err := e.weights.device.NewEvent()
		if err != nil {
			return err
		}
		e.layers = append(e.layers, event)
	}
	if e.finished, err = e.weights.device.NewEvent(); err != nil {
		return err
	}
	// What pads rows is zero from now on.
	e.program.Fill(e.begin, 0, WorkspaceBytes(spec, c))
	if err := e.stream.Run(e.program); err != nil {
		return err
	}
	if c.usesFast() {
		if e.fast, err = newFast(e.weights, c, e.workspace); err != nil {
			return err
		}
		if err := e.prepare(); err != nil {
			return err
		}
	}
	if !c.NoGraphs {
		if e.graphs, err = e.capture(); err != nil {
			return err
		}
	}
	return e.warm()
}

// warm runs every kernel that steps use, and every graph, for no rows: what memory the
// driver takes for them it takes now.
func (e *cudaEngine) warm() error {
	e.program.Reset()
	for _, graph := range e.graphs {
		e.program.Graph(graph)
	}
	for rows := 1; ; rows *= 2 { // each kind of product
		e.rows = min(rows, e.config.MaxBatchTokens)
		e.embed()
		e.keys(0)
		e.rest(0, e.narrowed(e.rows))
		e.launcher.head(e.whole(), 0, 0, min(e.rows, e.config.headRows()))
		if e.rows == e.config.MaxBatchTokens {
			break
		}
	}
	err := e.stream.Run(e.program)
	e.program.Reset()
	return err
}

// widest is the widest window of a model's layers; 0 if some layer sees all.
func widest(spec model.Spec) int {
	most := 0
	for layer := range spec.Layers {
		window := spec.Window(layer)
		if window == 0 {
			return 0
		}
		most = max(most, window)
	}
	return most
}

// Model implements engine.Engine.
func (e *cudaEngine) Model() model.Spec { return e.weights.spec }

// Capacity implements engine.Engine.
func (e *cudaEngine) Capacity() engine.Capacity { return e.capacity }

// Pages implements engine.Engine.
func (e *cudaEngine) Pages() engine.Pages { return e.kv }

// Waited is how long all steps have waited for the device, after they had given it what to
// do: what a step takes beside that is the host's. Steps whose layers somebody wants to
// hear of wait in other ways too, which are not counted.
func (e *cudaEngine) Waited() time.Duration { return e.stream.Waited() }

// Close implements engine.Engine. A Step that runs is waited for, and one that was started
// until somebody has waited for it. Closing twice does nothing.
func (e *cudaEngine) Close() error {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	return e.free()
}

// free gives back what there is.
func (e *cudaEngine) free() error {
	errs := []error{e.graphs.close()}
	if e.stream != nil {
		errs = append(errs, e.stream.Synchronize(), e.stream.Close())
	}
	if e.fast != nil {
		errs = append(errs, e.fast.close())
	}
	for _, event := range append(e.layers, e.finished) {
		errs = append(errs, closeMade(event))
	}
	if e.kv != nil {
		errs = append(errs, e.kv.free())
	}
	if e.workspace != nil {
		errs = append(errs, e.workspace.free())
	}
	e.program.Free()
	e.weights.unfollow(e.loss)
	e.weights.release()
	return closing(errs)
}

// closeMade closes what was made; nil: it was not.
func closeMade[T any, P interface {
	*T
	Close() error
}](made P) error {
	if made == nil {
		return nil
	}
	return made.Close()
}

// closing is the error of closing many things: one for all that a lost device refuses.
func closing(errs []error) error {
	err := errors.Join(errs...)
	if lost(err) {
		return fmt.Errorf("close: %w", engine.ErrDeviceLost)
	}
	return err
}

// Lost implements engine.LossNotifier.
func (e *cudaEngine) Lost() <-chan struct{} { return e.loss.noticed }
