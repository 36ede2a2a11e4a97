package enginetest

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// asking is a draw that asks for log probabilities.
func asking(offset, top int) *engine.Sample {
	s := draw(offset)
	s.Logprobs, s.TopLogprobs = true, top
	return s
}

// testLogprobs: only who asks is told how likely its token was, and asking
// changes no token.
func testLogprobs(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 9, 6)
	blocks := len(blocksFor(e, len(p), 0))
	sequences := func(first, last *engine.Sample) []engine.Sequence {
		return []engine.Sequence{
			{Tokens: p, Blocks: blocksFor(e, len(p), 0), Sample: first},
			{Tokens: p[:4], Blocks: blocksFor(e, 4, blocks), Sample: draw(0)},
			{Tokens: p[:5], Blocks: blocksFor(e, 5, 2*blocks)},
			{Tokens: p, Blocks: blocksFor(e, len(p), 3*blocks), Sample: last},
		}
	}
	want := mustStep(t, e, sequences(draw(0), draw(0))...)
	if want.Logprobs != nil {
		t.Error("log probabilities that nobody asked for")
	}
	const top = 5
	out := mustStep(t, e, sequences(asking(0, top), asking(0, 0))...)
	if !slices.Equal(out.Tokens, want.Tokens) {
		t.Errorf("tokens %v, without asking for log probabilities %v", out.Tokens, want.Tokens)
	}
	if len(out.Logprobs) != len(out.Tokens) {
		t.Fatalf("%d log probabilities for %d sequences", len(out.Logprobs), len(out.Tokens))
	}
	checkLogprobs(t, e, out.Logprobs[0], out.Tokens[0], top)
	checkLogprobs(t, e, out.Logprobs[3], out.Tokens[3], 0)
	if math.Float32bits(out.Logprobs[0].Drawn) != math.Float32bits(out.Logprobs[3].Drawn) {
		t.Errorf("the same token after the same prompt has %v and %v", out.Logprobs[0].Drawn, out.Logprobs[3].Drawn)
	}
	alone := mustStep(t, e, engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Sample: asking(0, top)})
	if !slices.Equal(alone.Logprobs[0].Top, out.Logprobs[0].Top) {
		t.Errorf("alone %v, in a batch %v", alone.Logprobs[0].Top, out.Logprobs[0].Top)
	}
}

// checkLogprobs checks what holds of any distribution.
func checkLogprobs(t *testing.T, e engine.Engine, l sampler.Logprobs, drawn int32, top int) {
	t.Helper()
	if !(l.Drawn <= 0) || len(l.Top) != min(top, e.Model().VocabSize) {
		t.Fatalf("asked for %d of the likeliest: %+v", top, l)
	}
	var sum float64
	seen := make(map[int32]bool)
	for i, c := range l.Top {
		if c.Token < 0 || int(c.Token) >= e.Model().VocabSize || seen[c.Token] || i > 0 && c.Logprob > l.Top[i-1].Logprob {
			t.Errorf("not different tokens of the vocabulary, likeliest first: %+v", l.Top)
		}
		if c.Token == drawn && c.Logprob != l.Drawn {
			t.Errorf("token %d has %v and %v", drawn, l.Drawn, c.Logprob)
		}
		seen[c.Token] = true
		sum += math.Exp(float64(c.Logprob))
	}
	if sum > 1+1e-6 || top > 0 && !seen[drawn] && l.Drawn > l.Top[len(l.Top)-1].Logprob {
		t.Errorf("token %d with %v beside %+v", drawn, l.Drawn, l.Top)
	}
}

// testHistory: penalties follow the history of the draw, whatever tokens are
// computed in the step.
func testHistory(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 9, 8)
	step := func(change func(*engine.Sample)) int32 {
		s := &engine.Sample{}
		change(s)
		return mustStep(t, e, engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Sample: s}).Tokens[0]
	}
	likeliest := step(func(*engine.Sample) {})
	often := slices.Repeat([]int32{likeliest}, 10_000)
	for name, change := range map[string]func(*engine.Sample){
		"forbidden": func(s *engine.Sample) {
			s.Params.LogitBias = []sampler.TokenBias{{Token: likeliest, Bias: sampler.MinLogitBias}}
		},
		"generated often": func(s *engine.Sample) {
			s.Params.FrequencyPenalty, s.History.Generated = sampler.MaxPenalty, often
		},
	} {
		if got := step(change); got == likeliest {
			t.Errorf("%s: token %d is drawn nevertheless", name, got)
		}
	}
	if got := step(func(s *engine.Sample) {
		s.Params.FrequencyPenalty, s.History.Prompt = sampler.MaxPenalty, often
	}); got != likeliest {
		t.Errorf("token %d instead of %d: the prompt counts as generated", got, likeliest)
	}
}
