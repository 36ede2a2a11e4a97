package enginetest

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// only allows some tokens after each number of tokens that were generated.
type only [][]int32

// Allowed implements sampler.Constraint.
func (o only) Allowed(generated []int32) []uint64 {
	var mask []uint64
	for _, id := range o[len(generated)] {
		for len(mask) <= int(id>>6) {
			mask = append(mask, 0)
		}
		mask[id>>6] |= 1 << (id & 63)
	}
	return mask
}

// testConstraint: what is drawn is among what is allowed after the tokens so far, greedy or
// not, and of a sequence for which nothing is allowed no token comes. Others are as without it.
func testConstraint(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 9, 11)
	blocks := len(blocksFor(e, len(p), 0))
	free := func(at int) engine.Sequence {
		return engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), at*blocks), Sample: draw(0)}
	}
	held := func(at int, s *engine.Sample, allowed sampler.Constraint, generated ...int32) engine.Sequence {
		s.Constraint, s.History.Generated, s.Offset = allowed, generated, uint64(len(generated))
		return engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), at*blocks), Sample: s}
	}
	want := mustStep(t, e, free(0), free(1)).Tokens
	// Neither the ends of texts nor what would be drawn without it.
	var some []int32
	for id := int32(3); len(some) < 3; id += 31 {
		if id != want[0] && !slices.Contains(e.Model().EOS, id) && id != e.Model().BOS {
			some = append(some, id)
		}
	}
	steps := only{some[:1], some[1:], nil}
	out := mustStep(t, e, free(0), held(1, draw(0), steps), held(2, &engine.Sample{}, steps, some[0]), held(3, asking(0, 2), steps, some[0], some[1]))
	if out.Tokens[0] != want[0] {
		t.Errorf("token %d beside constrained ones, %d without", out.Tokens[0], want[0])
	}
	if out.Tokens[1] != some[0] || !slices.Contains(some[1:], out.Tokens[2]) || out.Tokens[3] != sampler.NoneAllowed {
		t.Errorf("tokens %v, allowed are %v", out.Tokens[1:], steps)
	}
	if again := mustStep(t, e, held(1, &engine.Sample{}, steps, some[0])).Tokens[0]; again != out.Tokens[2] {
		t.Errorf("alone %d, in a batch %d", again, out.Tokens[2])
	}
	if len(out.Logprobs) == 4 && out.Logprobs[3].Top != nil {
		t.Errorf("log probabilities of no token: %+v", out.Logprobs[3])
	}
}
