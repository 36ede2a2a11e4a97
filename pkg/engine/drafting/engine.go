package drafting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
)

// ChunkTokens is the most tokens of texts that the draft model computes in a step before it can draft:
// a long prompt is computed over several.
const ChunkTokens = 256

// Engine is an engine.Engine that makes drafts. As any, it has one Step at a time.
type Engine struct {
	engine.Engine // the one whose tokens are drawn
	draft         engine.Engine
	logger        *slog.Logger
	capacity      engine.Capacity
	texts         *texts
	failed        bool          // the draft model is not asked any more
	took, reading time.Duration // by the draft model in this step

	// Scratch.
	drafters  []*drafter
	members   []*drafter // of the draft model's batch
	batch     engine.Batch
	samples   []engine.Sample // of that
	sequences []engine.Sequence
	verified  []engine.Sample // of those
	tokens    []int32         // of those
}

// New puts a draft model beside an engine: both are closed with what it returns. The draft model's
// engine has to take ChunkTokens tokens and as many sequences in a step as the other.
func New(target, draft engine.Engine, logger *slog.Logger) (*Engine, error) {
	capacity, of := target.Capacity(), draft.Capacity()
	switch {
	case capacity.MaxDrafts == 0:
		return nil, errors.New("a draft model is of no use: the engine verifies no drafts")
	case of.MaxBatchTokens < max(ChunkTokens, capacity.MaxSequences):
		return nil, fmt.Errorf("the draft model takes %d tokens in a step: it needs %d", of.MaxBatchTokens, max(ChunkTokens, capacity.MaxSequences))
	case of.MaxSequences < capacity.MaxSequences:
		return nil, fmt.Errorf("the draft model takes %d sequences in a step: it needs %d", of.MaxSequences, capacity.MaxSequences)
	}
	capacity.MakesDrafts = true
	return &Engine{Engine: target, draft: draft, logger: logger, capacity: capacity, texts: newTexts(of.Blocks, of.Layout.BlockTokens)}, nil
}

// Capacity implements engine.Engine.
func (e *Engine) Capacity() engine.Capacity { return e.capacity }

// Wrapped implements engine.Wrapper.
func (e *Engine) Wrapped() engine.Engine { return e.Engine }

// Close implements engine.Engine.
func (e *Engine) Close() error { return errors.Join(e.draft.Close(), e.Engine.Close()) }

// Step implements engine.Engine. Drafts are made before the target computes anything. Where they
// cannot be made the step is one without.
func (e *Engine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	e.took, e.reading = 0, 0
	if !e.ask(batch) {
		return e.Engine.Step(ctx, batch)
	}
	// Else each of the draft model's steps would wait for one of another engine.
	if holding, is := engine.As[engine.TurnTaker](e.Engine); is {
		held, release, err := holding.Hold(ctx)
		if err != nil {
			return engine.Output{}, fmt.Errorf("step: %w", err)
		}
		defer release()
		ctx = held
	}
	if err := e.makeDrafts(ctx); err != nil && ctx.Err() == nil {
		e.logger.Error("the draft model failed: there are no more drafts until the worker is restarted", slog.Any("error", err))
		e.failed, e.texts = true, nil
	}
	drafts := e.drafts(len(batch.Sequences))
	out, err := e.Engine.Step(ctx, e.with(batch, drafts))
	out.Drafts, out.Drafting, out.Reading = drafts, e.took, e.reading
	return out, err
}

// drafts are those that were made, for each of so many sequences.
func (e *Engine) drafts(sequences int) (all [][]int32) {
	for _, g := range e.drafters {
		if len(g.drafts) == 0 {
			continue
		}
		if all == nil {
			all = make([][]int32, sequences)
		}
		all[g.index] = g.drafts
	}
	return all
}

// with is the batch with drafts to verify. It is valid until the next step.
func (e *Engine) with(batch engine.Batch, drafts [][]int32) engine.Batch {
	if drafts == nil {
		return batch
	}
	e.sequences = append(e.sequences[:0], batch.Sequences...)
	e.verified, e.tokens = e.verified[:0], e.tokens[:0]
	for i, made := range drafts {
		if len(made) == 0 {
			continue
		}
		s := &e.sequences[i]
		first := len(e.tokens)
		e.tokens = append(append(e.tokens, s.Tokens...), made...)
		s.Tokens = e.tokens[first:len(e.tokens):len(e.tokens)]
		e.verified = append(e.verified, *s.Sample)
		s.Sample = &e.verified[len(e.verified)-1] // where a later one moves them, this stays as it is
		s.Sample.Drafts = len(made)
	}
	batch.Sequences = e.sequences
	return batch
}
