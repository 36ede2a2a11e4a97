package cpu

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/engine/internal/rotary"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// headRows bounds the rows of logits that are computed at once.
const headRows = 32

// cpuEngine is an engine.Engine.
type cpuEngine struct {
	weights   *Weights
	config    Config
	capacity  engine.Capacity
	batches   *engine.Validator
	cutter    engine.Cutter
	pages     *hostpages.Pages
	workspace *kernels.Workspace
	angles    rotary.Embedding
	sampler   *sampler.Sampler
	held      []engine.Mirror // reused: the mirrors that are held
	rows      []row           // reused: the rows that become logits
	state     []float64       // reused: a hidden state
}

// row is a row of logits: its sequence, the token that it follows, and the number of the draw from
// it, below 0 without one.
type row struct {
	sequence, token, draw int
	at                    int // row of the workspace
}

// maxDrafts bounds the drafts of a sequence: so many rows cost little beside the weights that a
// step reads anyway.
const maxDrafts = 15

// NewEngine makes an engine with its own KV pages on shared weights. Steps of different engines
// take turns, first come, first served.
func (w *Weights) NewEngine(config Config) (engine.Engine, error) {
	config, err := config.complete(w.spec, w.pool.Threads())
	if err != nil {
		return nil, fmt.Errorf("new engine for %s: %w", w.spec.Name, err)
	}
	set := w.set
	if config.ISA != "" {
		if set, err = kernels.Select(config.ISA); err != nil {
			return nil, fmt.Errorf("new engine for %s: %w", w.spec.Name, err)
		}
	}
	if err := w.acquire(); err != nil {
		return nil, fmt.Errorf("new engine: %w", err)
	}
	layout := config.layout(w.spec, w.kind)
	pages, err := newPages(layout, config)
	if err != nil {
		w.release()
		return nil, fmt.Errorf("new engine for %s: %d KV blocks: %w", w.spec.Name, config.Blocks, err)
	}
	workspace, err := kernels.NewWorkspace(w.packed, set, config.Threads, shapeOf(w.spec, w.kind, config), config.bounds(w.spec), kernels.Borrow(pages.Bytes()))
	if err != nil {
		_ = pages.Close() // the first error says more
		w.release()
		return nil, fmt.Errorf("new engine for %s: %w", w.spec.Name, err)
	}
	capacity := engine.Capacity{
		Blocks:            config.Blocks,
		MaxBatchTokens:    config.MaxBatchTokens,
		MaxSequences:      config.MaxSequences,
		MaxDrafts:         maxDrafts,
		PoolsHiddenStates: true,
		Threads:           config.Threads,
		BytesPerWeight:    w.kind.BytesPerWeight(),
		KVTokenBytes:      float64(layout.SliceBytes) / float64(layout.BlockTokens),
		Layout:            layout,
	}
	return &cpuEngine{
		weights:   w,
		config:    config,
		capacity:  capacity,
		batches:   engine.NewValidator(capacity, w.spec),
		pages:     pages,
		workspace: workspace,
		angles:    rotary.New(w.spec),
		sampler:   sampler.New(),
	}, nil
}

// newPages makes the pages of an engine.
func newPages(layout kvcache.Layout, config Config) (*hostpages.Pages, error) {
	if config.SharedKV {
		if pages, err := hostpages.MapShared(layout, config.Blocks); err == nil {
			pages.Collapse()
			return pages, nil
		}
	}
	memory, err := kernels.Allocate(config.Blocks * layout.PageBytes())
	if err != nil {
		return nil, err
	}
	return hostpages.Over(layout, config.Blocks, memory.Bytes(), func() error { memory.Free(); return nil }), nil
}

// Model implements engine.Engine.
func (e *cpuEngine) Model() model.Spec { return e.weights.spec }

// Capacity implements engine.Engine.
func (e *cpuEngine) Capacity() engine.Capacity { return e.capacity }

// Pages implements engine.Engine.
func (e *cpuEngine) Pages() engine.Pages { return e.pages }

// Close implements engine.Engine. It waits for a Step that still runs, in a process that no
// longer waits for it, since Close unmaps the memory of the step. Closing twice does nothing.
func (e *cpuEngine) Close() error {
	if err := e.weights.turn.Acquire(context.Background(), 1); err != nil {
		return fmt.Errorf("close engine: %w", err)
	}
	defer e.weights.turn.Release(1)
	if e.pages.Closed() {
		return nil
	}
	err := e.pages.Close()
	e.workspace.Free()
	e.weights.release()
	return err
}

// holds is the key of the turn that a context's steps have.
type holds struct{}

// Hold implements engine.TurnTaker.
func (e *cpuEngine) Hold(ctx context.Context) (held context.Context, release func(), err error) {
	turn := e.weights.turn
	if ctx.Value(holds{}) == turn {
		return ctx, func() {}, nil
	}
	if err := turn.Acquire(ctx, 1); err != nil {
		return nil, nil, fmt.Errorf("wait for the compute threads: %w", err)
	}
	return context.WithValue(ctx, holds{}, turn), func() { turn.Release(1) }, nil
}

// Step implements engine.Engine. It checks the context while it waits for the compute threads,
// and between groups of layers, and of rows of logits, that take some milliseconds.
func (e *cpuEngine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	if e.pages.Closed() {
		return engine.Output{}, fmt.Errorf("step: engine is %w", errClosed)
	}
	if err := e.batches.Validate(batch); err != nil {
		return engine.Output{}, fmt.Errorf("step: %w", err)
	}
	if ctx.Value(holds{}) != e.weights.turn {
		if err := e.weights.turn.Acquire(ctx, 1); err != nil {
			return engine.Output{}, fmt.Errorf("step: wait for the compute threads: %w", err)
		}
		defer e.weights.turn.Release(1)
	}
	if e.pages.Closed() { // closed while this step waited
		return engine.Output{}, fmt.Errorf("step: engine is %w", errClosed)
	}
	begin := time.Now()
	batch, cut := e.cutter.Cut(batch)
	output, err := e.compute(ctx, batch)
	if err != nil {
		return engine.Output{}, fmt.Errorf("step: %w", err)
	}
	output.Compute = time.Since(begin)
	output.CutDrafts(batch, cut)
	return output, nil
}

// compute computes the step. The caller has the turn.
func (e *cpuEngine) compute(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	k := e.workspace
	k.Reset()
	blockTokens := e.config.BlockTokens
	for _, s := range batch.Sequences {
		blocks := s.Blocks[:s.UsedBlocks(blockTokens)]
		e.pages.Reached(blocks[len(blocks)-1], len(blocks)-s.Start/blockTokens)
		cos, sin, err := k.Add(s.Tokens, s.Start, blocks)
		if err != nil {
			return engine.Output{}, err
		}
		e.angles.Fill(cos, sin, s.Start, len(s.Tokens))
	}
	k.Embed()
	layers, whole := e.weights.spec.Layers, e.whole(batch)
	for layer := 0; layer < layers; layer++ {
		if err := ctx.Err(); err != nil {
			return engine.Output{}, err
		}
		if layer < whole {
			n := k.LayersAtOnce(layer, whole-layer)
			k.Layers(layer, n)
			layer += n - 1
			continue
		}
		e.keys(layer, batch.Mirrors)
		if batch.LayerDone != nil {
			batch.LayerDone(layer)
		}
		// The last layer computes only rows that become logits.
		if layer+1 == layers && k.Narrow(func(i int) int { return kept(&batch.Sequences[i]) }) == 0 {
			break
		}
		k.Rest()
	}
	if batch.LayersDone != nil {
		batch.LayersDone()
	}
	if err := ctx.Err(); err != nil {
		return engine.Output{}, err
	}
	e.pool(batch)
	return e.head(ctx, batch)
}

// keys computes a layer's keys and values, and stores them in the mirrors too, which it holds only while
// it stores.
func (e *cpuEngine) keys(layer int, mirrors []engine.Mirror) {
	if mirrors == nil {
		e.workspace.Keys(layer)
		return
	}
	e.workspace.Products(layer)
	defer e.release()
	for i, m := range mirrors {
		switch {
		case m == nil:
		case m.Hold(layer):
			e.held = append(e.held, m)
			e.workspace.Mirror(i, func(block int) []byte { return m.View(layer, block) })
		default:
			e.workspace.Mirror(i, nil)
		}
	}
	e.workspace.Rotate()
}

// release releases the mirrors that are held.
func (e *cpuEngine) release() {
	for _, m := range e.held {
		m.Release()
	}
	clear(e.held)
	e.held = e.held[:0]
}

// whole is the number of layers, from the first on, that are computed for every token without a
// stop after their keys and values. It is 0 if a transfer waits for those, and leaves out the
// last layer if a prompt needs only some of its rows.
func (e *cpuEngine) whole(batch engine.Batch) int {
	if batch.LayerDone != nil {
		return 0
	}
	for i := range batch.Sequences {
		if s := &batch.Sequences[i]; kept(s) < len(s.Tokens) {
			return e.weights.spec.Layers - 1
		}
	}
	return e.weights.spec.Layers
}

// kept is the number of rows at the end of a sequence that are needed after the last layer.
func kept(s *engine.Sequence) int {
	if s.Pooling != nil {
		return len(s.Tokens)
	}
	return s.LogitRows()
}

// pool adds hidden states to the pools of the sequences that have one.
func (e *cpuEngine) pool(batch engine.Batch) {
	for i := range batch.Sequences {
		pool := batch.Sequences[i].Pooling
		if pool == nil {
			continue
		}
		if e.state == nil {
			e.state = make([]float64, pool.Size())
		}
		first, n := e.workspace.Kept(i)
		for r := first; r < first+n; r++ {
			e.workspace.Normed(r, e.state)
			pool.Add(e.state)
		}
	}
}

// head computes the logits of the remaining rows, returns those that were asked for, and draws
// tokens.
func (e *cpuEngine) head(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	output := engine.Output{Tokens: batch.NewTokens()}
	e.rows = e.rows[:0]
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		first, rows := e.workspace.Kept(i)
		for n := s.LogitRows(); n > 0; n-- {
			e.rows = append(e.rows, row{i, len(s.Tokens) - n, s.Rows() - n, first + rows - n})
		}
	}
	for next := 0; next < len(e.rows); {
		if err := ctx.Err(); err != nil {
			return engine.Output{}, err
		}
		rows := together(e.rows[next:])
		next += len(rows)
		e.workspace.Head(rows[0].at, len(rows))
		var scores []sampler.Logprobs
		if slices.ContainsFunc(rows, func(r row) bool { return r.scored(batch) }) {
			scores = e.scores(batch, rows)
		}
		for i, r := range rows {
			logits := e.workspace.Logits(i)
			s := &batch.Sequences[r.sequence]
			output.LogitsRow(batch, r.sequence, r.token, logits)
			output.PromptRow(batch, r.sequence, r.token, func(int32, int) sampler.Logprobs { return scores[i] })
			if r.draw < 0 {
				continue
			}
			output.Draw(batch, r.sequence, r.draw, func(offset uint64, h sampler.History) int32 {
				return s.Sample.Draw(e.sampler, logits, offset, h)
			}, func(token int32) sampler.Logprobs {
				return e.sampler.Logprobs(logits, token, s.Sample.TopLogprobs)
			})
		}
	}
	return output, nil
}

// scored says whether somebody asks how likely the token of a prompt after the row is.
func (r row) scored(batch engine.Batch) bool {
	prompt := batch.Sequences[r.sequence].Prompt
	return prompt != nil && r.token < len(prompt.Next)
}

// scores is how likely the token after each row is that is scored. In a large vocabulary that takes
// milliseconds a row: goroutines share the rows. What a row gives does not depend on others.
func (e *cpuEngine) scores(batch engine.Batch, rows []row) []sampler.Logprobs {
	scores := make([]sampler.Logprobs, len(rows))
	var sharing sync.WaitGroup
	for first := range e.config.Threads {
		sharing.Go(func() {
			by := sampler.New()
			for i := first; i < len(rows); i += e.config.Threads {
				if r := rows[i]; r.scored(batch) {
					prompt := batch.Sequences[r.sequence].Prompt
					scores[i] = by.PromptLogprobs(e.workspace.Logits(i), prompt.Next[r.token], prompt.Top)
				}
			}
		})
	}
	sharing.Wait()
	return scores
}

// together returns the leading rows that are adjacent in the workspace and fit into one
// computation of logits.
func together(rows []row) []row {
	n := 1
	for n < min(len(rows), headRows) && rows[n].at == rows[0].at+n {
		n++
	}
	return rows[:n]
}
