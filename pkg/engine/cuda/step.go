package cuda

import (
	"github.com/tandem-serving/tandem/pkg/engine"
)

// launch gives the device the layers of a batch, or says to which graph that is left.
// What it returns is where the rows are that become logits. Callers of a batch hear of its
// layers before it returns; if there is nobody who wants to hear, the program is left to
// be run with the head.
func (e *cudaEngine) launch(batch engine.Batch) (residual, error) {
	listens := batch.LayerDone != nil || batch.LayersDone != nil
	if graph := e.graphs.of(batch); graph != nil && !listens {
		e.program.Graph(graph)
		return residual{}, nil
	}
	e.rows = e.in.batchRows
	last := e.layersOf(batch)
	if !listens {
		return last, nil
	}
	e.program.Record(e.finished)
	if err := e.stream.Submit(e.program); err != nil {
		return residual{}, err
	}
	e.program.Reset()
	if batch.LayerDone != nil {
		for layer, done := range e.layers {
			if err := done.Synchronize(); err != nil {
				return residual{}, err
			}
			batch.LayerDone(layer)
		}
	}
	if err := e.finished.Synchronize(); err != nil {
		return residual{}, err
	}
	if batch.LayersDone != nil {
		batch.LayersDone()
	}
	return last, nil
}

// layersOf appends all layers. Of the last one only what becomes logits is of use.
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
