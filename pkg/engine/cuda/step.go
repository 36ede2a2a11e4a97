package cuda

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// errFlying and errIdle are of callers who confuse Start and Wait.
var (
	errFlying = errors.New("a step is running: wait for it first")
	errIdle   = errors.New("no step was started")
)

// flight is the step that the device has been given and that nobody has waited for.
type flight struct {
	batch engine.Batch
	begin time.Time
	from  residual // the rows that become logits; without rows a graph has all of it
	err   error    // of giving it to the device
}

// listens says whether callers of a batch want to hear of its layers.
func listens(b engine.Batch) bool { return b.LayerDone != nil || b.LayersDone != nil }

// Step implements engine.Engine. The context is looked at before the step begins: what
// the device has been given it computes.
func (e *cudaEngine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	if err := e.start(ctx, batch); err != nil {
		return engine.Output{}, err
	}
	return e.Wait()
}

// Start implements engine.AsyncStepper.
func (e *cudaEngine) Start(ctx context.Context, batch engine.Batch) error {
	if listens(batch) {
		return errors.New("step: only Step reports layers: call it instead of Start")
	}
	return e.start(ctx, batch)
}

// start gives the device a batch that is valid, and e.closing is held until Wait. That also
// tells what the driver refused of it: the device may have begun with the rest, and callers
// of Start hold locks, which nobody should while a device that fails is waited for.
func (e *cudaEngine) start(ctx context.Context, batch engine.Batch) (err error) {
	if e.flying != nil {
		return fmt.Errorf("step: %w", errFlying)
	}
	e.closing.Lock()
	defer func() {
		if err != nil {
			e.closing.Unlock()
			err = fmt.Errorf("step: %w", err)
		}
	}()
	switch {
	case e.closed:
		return fmt.Errorf("engine is %w", errClosed)
	case e.loss.err() != nil:
		return e.loss.err()
	}
	if err := e.batches.Validate(batch); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.flight = flight{batch: batch, begin: time.Now()}
	e.weights.pace.stepBegins()
	e.flight.err = e.submit()
	e.flying = &e.flight
	return nil
}

// submit hands over the layers of a batch and the first pass of its head.
func (e *cudaEngine) submit() error {
	f := &e.flight
	graph := -1
	if !listens(f.batch) {
		graph = e.graphs.of(f.batch)
	}
	e.in.use(graph)
	e.in.fill(f.batch, e.planner, e.config.BlockTokens, e.config.headRows())
	e.program.Reset()
	e.in.send(e.program)
	e.taken = takenOf(e.taken, f.batch)
	first := e.pass(0)
	if graph >= 0 {
		e.program.Graph(e.graphs[graph])
	} else {
		e.rows = e.in.batchRows
		f.from = e.layersOf(f.batch)
		if listens(f.batch) {
			e.program.Record(e.finished)
		}
		if len(first) > 0 {
			e.launcher.head(f.from, 0, 0, len(first))
		}
	}
	e.fetch(f.batch, first)
	return e.stream.Submit(e.program)
}

// layersOf appends all layers. Of the last one only what becomes logits is of use. What
// it returns is where the rows are that do.
func (e *cudaEngine) layersOf(batch engine.Batch) residual {
	to := e.whole()
	e.embed()
	for layer := range e.weights.spec.Layers {
		e.keys(layer)
		if batch.LayerDone != nil {
			e.program.Record(e.layers[layer])
		}
		if layer+1 == e.weights.spec.Layers && e.in.narrow {
			if e.in.wanted == 0 {
				break
			}
			to = e.narrowed(e.in.wanted)
		}
		e.rest(layer, to)
	}
	return to
}

// Wait implements engine.AsyncStepper.
func (e *cudaEngine) Wait() (engine.Output, error) {
	if e.flying == nil {
		return engine.Output{}, fmt.Errorf("step: %w", errIdle)
	}
	defer func() {
		e.weights.pace.stepEnds()
		e.flying, e.flight = nil, flight{}
		e.closing.Unlock()
	}()
	output, err := e.land()
	if err != nil {
		return engine.Output{}, fmt.Errorf("step: %w", e.loss.after(err, e.stream))
	}
	if err := e.loss.err(); err != nil { // what it computed meanwhile may be wrong
		return engine.Output{}, fmt.Errorf("step: %w", err)
	}
	output.Compute = time.Since(e.flight.begin)
	return output, nil
}

// land waits for what was submitted, tells of its layers as they are done, and computes
// what logits are left, a pass at a time.
func (e *cudaEngine) land() (engine.Output, error) {
	f := &e.flight
	if f.err != nil {
		return engine.Output{}, f.err
	}
	if f.batch.LayerDone != nil {
		for layer, done := range e.layers {
			if err := done.Synchronize(); err != nil {
				return engine.Output{}, err
			}
			f.batch.LayerDone(layer)
		}
	}
	if f.batch.LayersDone != nil {
		if err := e.finished.Synchronize(); err != nil {
			return engine.Output{}, err
		}
		f.batch.LayersDone()
	}
	if err := e.stream.Synchronize(); err != nil {
		return engine.Output{}, err
	}
	output := engine.Output{Tokens: f.batch.NewTokens()}
	e.draw(f.batch, e.pass(0), &output)
	for pass := 1; len(e.pass(pass)) > 0; pass++ {
		rows := e.pass(pass)
		e.program.Reset()
		e.launcher.head(f.from, pass, pass*e.config.headRows(), len(rows))
		e.fetch(f.batch, rows)
		if err := e.stream.Run(e.program); err != nil {
			return engine.Output{}, err
		}
		e.draw(f.batch, rows, &output)
	}
	return output, nil
}
