package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// graphs are the decode steps of an engine, recorded once: graph i serves up to 1<<i
// sequences that compute one token each.
type graphs []*driver.Graph

// of is the graph for a batch; -1 if it is not one of single tokens, or larger than any.
func (g graphs) of(batch engine.Batch) int {
	for i := range batch.Sequences {
		if len(batch.Sequences[i].Tokens) != 1 || batch.Sequences[i].Logits == engine.LogitsAll {
			return -1
		}
	}
	for i := range g {
		if len(batch.Sequences) <= 1<<i {
			return i
		}
	}
	return -1
}

func (g graphs) close() error {
	var errs []error
	for _, graph := range g {
		errs = append(errs, graph.Close())
	}
	return errors.Join(errs...)
}

// graphRows are the most rows of each graph: powers of two up to what a decode step may
// have, or up to the rows of a pass of the head.
func (c Config) graphRows() (most []int) {
	for rows := 1; ; rows *= 2 {
		most = append(most, min(rows, c.MaxSequences, c.headRows()))
		if rows >= min(c.MaxSequences, c.headRows()) {
			return most
		}
	}
}

// capture records the graphs: all at once, so that no step takes memory for them.
func (e *cudaEngine) capture() (made graphs, err error) {
	e.single = true
	defer func() {
		e.single = false
		e.in.use(-1)
		e.program.Reset()
	}()
	for i, rows := range e.config.graphRows() {
		e.in.use(i)
		e.program.Reset()
		e.rows = rows
		to := e.whole()
		e.embed()
		for layer := range e.weights.spec.Layers {
			e.keys(layer)
			e.rest(layer, to)
		}
		e.launcher.head(to, 0, 0, rows)
		graph, err := e.stream.Capture(e.program)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("record decode of %d sequences: %w", rows, err), made.close())
		}
		made = append(made, graph)
	}
	return made, nil
}
