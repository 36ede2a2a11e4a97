package enginetest

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// RunLogits checks an engine that computes logits.
func RunLogits(t *testing.T, newEngine NewEngine) {
	t.Run("rows of logits", func(t *testing.T) { testLogits(t, newEngine) })
	t.Run("draws are the sampler's", func(t *testing.T) { testSampled(t, newEngine) })
	t.Run("how likely a prompt is", func(t *testing.T) { testPromptOfLogits(t, newEngine) })
	t.Run("penalties follow the history", func(t *testing.T) { testHistory(t, newEngine) })
}

// testSampled: what the engine draws is what package sampler draws from the logits that it gives.
func testSampled(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 9, 21)
	for i, params := range []sampler.Params{
		{Temperature: 1.5, TypicalP: 0.3}, {Temperature: 1, TopK: 40, TopP: 0.9, MinP: 0.01, TypicalP: 0.7},
		{Temperature: 1.5, MinTokens: 5, Ends: many(e.Model().VocabSize)}, {MinTokens: 5, Ends: many(e.Model().VocabSize)},
	} {
		for offset := range uint64(8) {
			params.Seed = uint64(i)
			out := mustStep(t, e, engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Logits: engine.LogitsLast, Sample: &engine.Sample{Params: params, Offset: offset}})
			if want := sampler.New().Sample(out.Logits[0][0], params, offset, sampler.History{}); out.Tokens[0] != want {
				t.Errorf("offset %d: drew %d, pkg/sampler %d", offset, out.Tokens[0], want)
			}
		}
	}
}

func testLogits(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 50, 5)
	out := mustStep(t, e,
		engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Logits: engine.LogitsAll},
		engine.Sequence{Tokens: p[:5], Blocks: blocksFor(e, 5, 10), Logits: engine.LogitsLast, Sample: &engine.Sample{Logprobs: true, TopLogprobs: 3}},
		engine.Sequence{Tokens: p[:3], Blocks: blocksFor(e, 3, 11)})
	if len(out.Logits) != 3 || len(out.Logits[0]) != len(p) || len(out.Logits[1]) != 1 || len(out.Logits[2]) != 0 {
		t.Fatal("wrong number of rows of logits")
	}
	for i, row := range out.Logits[0] {
		if len(row) != e.Model().VocabSize {
			t.Fatalf("row %d has %d logits for a vocabulary of %d", i, len(row), e.Model().VocabSize)
		}
	}
	if !slices.Equal(out.Logits[1][0], out.Logits[0][4]) {
		t.Error("logits after 5 tokens depend on what follows or stands beside them")
	}
	best := slices.Max(out.Logits[1][0])
	if got := int(out.Tokens[1]); got != slices.Index(out.Logits[1][0], best) {
		t.Errorf("greedy token %d is not the likeliest", got)
	}
	if want := sampler.New().Logprobs(out.Logits[1][0], out.Tokens[1], 3); !reflect.DeepEqual(out.Logprobs[1], want) {
		t.Errorf("log probabilities %+v, of the logits %+v", out.Logprobs[1], want)
	}
}
