package enginetest

import (
	"reflect"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// testPromptLogprobs: how likely the tokens of a prompt are is the same in one chunk and in many,
// alone and beside others, which notice nothing.
func testPromptLogprobs(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 27, 8)
	size := e.Capacity().Layout.BlockTokens
	blocks := len(blocksFor(e, len(p), 0))
	plain := engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Sample: draw(0)}
	want := mustStep(t, e, plain)
	if want.PromptLogprobs != nil {
		t.Error("log probabilities of a prompt that nobody asked for")
	}
	asking := plain
	asking.Blocks, asking.Prompt = blocksFor(e, len(p), blocks), &engine.PromptLogprobs{Next: p[1:], Top: 2}
	whole := mustStep(t, e, plain, asking)
	if whole.Tokens[0] != want.Tokens[0] || whole.Tokens[1] != want.Tokens[0] || whole.PromptLogprobs[0] != nil || len(whole.PromptLogprobs[1]) != len(p)-1 {
		t.Fatalf("tokens %v, want %d; log probabilities of %d tokens", whole.Tokens, want.Tokens[0], len(whole.PromptLogprobs[1]))
	}
	var chunks []sampler.Logprobs
	for start := 0; start < len(p); start += size {
		end := min(start+size, len(p))
		s := engine.Sequence{Tokens: p[start:end], Start: start, Blocks: blocksFor(e, len(p), 0), Prompt: &engine.PromptLogprobs{Next: p[start+1 : min(end+1, len(p))], Top: 2}}
		if end == len(p) {
			s.Sample = draw(0)
		}
		out := mustStep(t, e, s)
		if end == len(p) && out.Tokens[0] != want.Tokens[0] {
			t.Errorf("token %d, want %d", out.Tokens[0], want.Tokens[0])
		}
		if len(out.PromptLogprobs) > 0 {
			chunks = append(chunks, out.PromptLogprobs[0]...)
		}
	}
	if !reflect.DeepEqual(chunks, whole.PromptLogprobs[1]) {
		t.Errorf("in chunks %+v, at once %+v", chunks, whole.PromptLogprobs[1])
	}
	for name, bad := range map[string]*engine.PromptLogprobs{
		"more than there are": {Next: append(p, 1)}, "no token": {Next: []int32{int32(e.Model().VocabSize)}}, "many": {Next: p[1:], Top: sampler.MaxTopLogprobs + 1},
	} {
		asking.Prompt = bad
		if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{asking}}); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

// testPromptOfLogits: they are what package sampler makes of the logits, and change nothing about
// which logits are given.
func testPromptOfLogits(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 50, 12)
	asking := engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), 0), Logits: engine.LogitsAll, Prompt: &engine.PromptLogprobs{Next: p[1:], Top: 4}}
	out := mustStep(t, e, asking)
	for i, got := range out.PromptLogprobs[0] {
		if want := sampler.New().PromptLogprobs(out.Logits[0][i], p[i+1], 4); !reflect.DeepEqual(got, want) {
			t.Fatalf("token %d: %+v, of the logits %+v", i+1, got, want)
		}
	}
	asking.Logits = engine.LogitsLast
	last := mustStep(t, e, asking)
	if got, want := last.Logits[0], out.Logits[0][len(p)-1:]; !reflect.DeepEqual(got, want) {
		t.Errorf("logits of %d tokens instead of those of the last", len(got))
	}
}
