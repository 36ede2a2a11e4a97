package enginetest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// testDrafts: with drafts, right or wrong, alone or beside others, tokens and log
// probabilities are those of steps with a token each. An engine that verifies none has
// nothing to show.
func testDrafts(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	most := min(e.Capacity().MaxDrafts, 6)
	if most == 0 {
		t.Skip("this engine verifies no drafts")
	}
	const n = 60
	for _, c := range []struct {
		name   string
		params sampler.Params
	}{
		{"greedy", sampler.Params{}},
		{"drawn", sampler.Params{Temperature: 0.9, TopP: 0.95, Seed: 42}},
		{"penalties", sampler.Params{Temperature: 0.7, Seed: 7, RepetitionPenalty: 1.2, PresencePenalty: 0.4, FrequencyPenalty: 0.3, LogitBias: []sampler.TokenBias{{Token: 3, Bias: 2}}}},
		{"typical, without an end at first", sampler.Params{Temperature: 0.9, TypicalP: 0.9, Seed: 11, MinTokens: 30, Ends: many(e.Model().VocabSize)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := prompt(e, 21, 3)
			want, likely, _ := drafted(t, e, p, c.params, nil, n, func([]int32) []int32 { return nil })
			r := rand.New(rand.NewPCG(5, 5))
			accepted, rejected := 0, 0
			got, also, _ := drafted(t, e, p, c.params, nil, n, func(so []int32) []int32 {
				drafts := slices.Clone(want[len(so):min(len(so)+r.IntN(most+1), n-1)])
				for i := range drafts {
					if accepted++; r.IntN(4) == 0 {
						drafts[i] = (drafts[i] + 1) % int32(e.Model().VocabSize)
						rejected++
					}
				}
				return drafts
			})
			if !slices.Equal(got, want) {
				t.Errorf("with drafts %v, without %v", got, want)
			}
			if !slices.EqualFunc(also, likely, func(a, b sampler.Logprobs) bool { return a.Drawn == b.Drawn && slices.Equal(a.Top, b.Top) }) {
				t.Error("the log probabilities differ")
			}
			if accepted < 20 || rejected < 5 {
				t.Errorf("only %d drafts, %d of them wrong", accepted, rejected)
			}
		})
	}
}

// drafted generates n tokens after a prompt, with the drafts that next gives for what was
// generated so far, beside a sequence that has none. cut is how many of them were not computed.
func drafted(t *testing.T, e engine.Engine, p []int32, params sampler.Params, constraint sampler.Constraint, n int, next func(so []int32) []int32) (tokens []int32, likely []sampler.Logprobs, cut int) {
	t.Helper()
	blocks := blocksFor(e, len(p)+n, 0)
	beside := prompt(e, 3, 9)
	sequence := func(work []int32, start, drafts int) engine.Sequence {
		return engine.Sequence{Tokens: work, Start: start, Blocks: blocks, Sample: &engine.Sample{
			Params: params, Constraint: constraint, Offset: uint64(len(tokens)), Drafts: drafts, Logprobs: true, TopLogprobs: 2,
			History: sampler.History{Prompt: p, Generated: tokens},
		}}
	}
	take := func(out engine.Output, drafts []int32) {
		accepted := 0
		if len(drafts) > 0 {
			accepted = int(out.Accepted[0])
			if accepted > 0 {
				likely = append(likely, out.DraftLogprobs[0]...)
			}
		}
		tokens = append(tokens, drafts[:accepted]...)
		cut += out.Cut
		if out.Tokens[0] != sampler.Later {
			tokens, likely = append(tokens, out.Tokens[0]), append(likely, out.Logprobs[0])
		}
	}
	for len(tokens) == 0 {
		take(mustStep(t, e, sequence(p, 0, 0)), nil)
	}
	for len(tokens) < n {
		drafts := next(tokens)
		work := append([]int32{tokens[len(tokens)-1]}, drafts...)
		out := mustStep(t, e,
			sequence(work, len(p)+len(tokens)-1, len(drafts)),
			engine.Sequence{Tokens: beside, Blocks: blocksFor(e, len(beside), len(blocks)), Sample: draw(0)})
		take(out, drafts)
	}
	if len(tokens) != n {
		t.Fatalf("%d tokens, want %d", len(tokens), n)
	}
	return tokens, likely, cut
}

func testBadDrafts(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	most := e.Capacity().MaxDrafts
	for _, c := range []struct {
		tokens, drafts int
		says           string
	}{
		{most + 2, most + 1, "drafts are outside"},
		{2, -1, "drafts are outside"},
		{2, min(2, most), "leave none"},
	} {
		if most == 0 && c.says != "drafts are outside" {
			continue
		}
		p := prompt(e, c.tokens, 1)
		_, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{{
			Tokens: p, Blocks: blocksFor(e, len(p), 0), Sample: &engine.Sample{Drafts: c.drafts},
		}}})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}
