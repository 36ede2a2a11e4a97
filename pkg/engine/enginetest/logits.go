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
	t.Run("penalties follow the history", func(t *testing.T) { testHistory(t, newEngine) })
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
