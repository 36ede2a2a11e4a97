package engine_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// echoing is a constraint that forces the last tokens that were generated.
type echoing struct{}

func (echoing) Allowed([]int32) []uint64 { return nil }

func (echoing) Forced(generated []int32, most int) ([]int32, bool) {
	return slices.Clone(generated[max(0, len(generated)-most):]), true
}

// free is one that knows of nothing forced.
type free struct{}

func (free) Allowed([]int32) []uint64 { return nil }

// What is forced is so after the drafts that were right and the token behind them, for those who ask.
func TestForcer(t *testing.T) {
	work := func(constraint sampler.Constraint, most int, drafts ...int32) engine.Sequence {
		return engine.Sequence{Tokens: append([]int32{2}, drafts...), Sample: &engine.Sample{
			Constraint: constraint, MostForced: most, Drafts: len(drafts), History: sampler.History{Generated: []int32{1, 2}},
		}}
	}
	batch := engine.Batch{Sequences: []engine.Sequence{
		work(echoing{}, 3), work(echoing{}, 4, 5, 6, 7), work(echoing{}, 0), work(nil, 3), work(free{}, 3), work(echoing{}, 3), {Tokens: []int32{3}},
	}}
	out := engine.Output{Tokens: []int32{3, 8, 3, 3, 3, sampler.Later, -1}, Accepted: []int32{0, 2, 0, 0, 0, 0, 0}}
	want := [][]int32{{1, 2, 3}, {2, 5, 6, 8}, nil, nil, nil, nil, nil}
	var f engine.Forcer
	for range 2 {
		for i, forced := range f.Forced(batch, &out) {
			if !slices.Equal(forced.Tokens, want[i]) || forced.Open != (want[i] != nil) {
				t.Errorf("sequence %d: %+v, want %v", i, forced, want[i])
			}
		}
	}
	batch.Sequences = batch.Sequences[2:]
	out.Tokens, out.Accepted = out.Tokens[2:], out.Accepted[2:]
	if all := f.Forced(batch, &out); all != nil {
		t.Errorf("nobody is forced: %+v", all)
	}
	// Answers that do not fit their batch are found by others.
	if all := f.Forced(batch, &engine.Output{}); all != nil {
		t.Errorf("of no answer: %+v", all)
	}
	batch.Sequences = []engine.Sequence{work(echoing{}, 3, 5)}
	f.Forced(batch, &engine.Output{Tokens: []int32{3}})
}
