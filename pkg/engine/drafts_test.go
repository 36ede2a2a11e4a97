package engine_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// TestDraftsAreDecode: what a step computes for drafts counts as decode, with a draw after
// each, and their context once.
func TestDraftsAreDecode(t *testing.T) {
	batch := engine.Batch{Sequences: []engine.Sequence{
		{Tokens: make([]int32, 4), Start: 10, Sample: &engine.Sample{Drafts: 3}},
		{Tokens: make([]int32, 1), Start: 5, Sample: &engine.Sample{}},
		{Tokens: make([]int32, 8), Start: 0, Sample: &engine.Sample{}},
	}}
	want := latency.StepWork{
		Prefill: latency.Work{Sequences: 1, Tokens: 8, Squares: 64, Context: 8, Samples: 1},
		Decode:  latency.Work{Sequences: 2, Tokens: 5, Squares: 14*14 - 100 + 36 - 25, Context: 20, Samples: 5},
	}
	if got := batch.Work(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	cut := latency.Work{Sequences: 2, Tokens: 4, Squares: want.Decode.Squares * (1 - 1.0/5), Context: 19, Samples: 4}
	if got := (&engine.Output{Cut: 1}).Work(batch); got.Prefill != want.Prefill || got.Decode != cut {
		t.Errorf("without a draft that was cut %+v, want %+v", got.Decode, cut)
	}
}
