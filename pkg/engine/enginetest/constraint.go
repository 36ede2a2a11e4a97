package enginetest

import (
	"math/rand/v2"
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
	if got := mustStep(t, e, held(1, draw(0), spent{})).Tokens[0]; got != sampler.OutOfEffort {
		t.Errorf("token %d of a constraint that is out of effort", got)
	}
	if len(out.Logprobs) == 4 && out.Logprobs[3].Top != nil {
		t.Errorf("log probabilities of no token: %+v", out.Logprobs[3])
	}
}

// spent is a constraint that has done all the work that it may.
type spent struct{}

func (spent) Allowed([]int32) []uint64 { return nil }
func (spent) OutOfEffort() bool        { return true }

// patient is a constraint that puts each draw off twice.
type patient struct {
	only
	asked map[int]int // by how many tokens there are
	later bool
}

func (p *patient) Allowed(generated []int32) []uint64 {
	p.asked[len(generated)]++
	if p.later = p.asked[len(generated)] <= 2; p.later {
		return nil
	}
	return p.only.Allowed(generated)
}

func (p *patient) Later() bool { return p.later }

// ForDrafts implements engine's draftable: what is asked of drafts is not put off.
func (p *patient) ForDrafts() sampler.Constraint { return p.only }

// testConstrainedDrafts: with drafts, allowed ones and others, what is drawn under a constraint is
// what steps with a token each draw.
func testConstrainedDrafts(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	most := min(e.Capacity().MaxDrafts, 5)
	if most == 0 {
		t.Skip("this engine verifies no drafts")
	}
	const n = 40
	allowed := make(only, n+most)
	for i := range allowed {
		for id := int32(i % 3); int(id) < e.Model().VocabSize; id += 3 {
			allowed[i] = append(allowed[i], id)
		}
	}
	for _, params := range []sampler.Params{{}, {Temperature: 0.9, Seed: 3}, {Temperature: 0.8, Seed: 4, RepetitionPenalty: 1.3}} {
		p := prompt(e, 21, 3)
		same := func(a, b sampler.Logprobs) bool { return a.Drawn == b.Drawn && slices.Equal(a.Top, b.Top) }
		want, likely, _ := drafted(t, e, p, params, allowed, n, func([]int32) []int32 { return nil })
		r := rand.New(rand.NewPCG(6, 6))
		forbidden := 0
		got, also, cut := drafted(t, e, p, params, allowed, n, func(so []int32) []int32 {
			drafts := slices.Clone(want[len(so):min(len(so)+r.IntN(most+1), n-1)])
			for i := range drafts {
				switch r.IntN(4) {
				case 0: // wrong, and allowed
					drafts[i] = (drafts[i] + 3) % int32(e.Model().VocabSize/3*3)
				case 1:
					drafts[i] = (drafts[i] + 1) % int32(e.Model().VocabSize/3*3)
					forbidden += len(drafts) - i
					return drafts
				}
			}
			return drafts
		})
		if !slices.Equal(got, want) || !slices.EqualFunc(also, likely, same) {
			t.Errorf("%+v: with drafts %v, without %v", params, got, want)
		}
		for _, drafts := range []int{0, most} {
			waiting := &patient{only: allowed, asked: map[int]int{}}
			got, also, _ := drafted(t, e, p, params, waiting, n, func(so []int32) []int32 {
				return want[len(so):min(len(so)+drafts, n-1)]
			})
			if !slices.Equal(got, want) || !slices.EqualFunc(also, likely, same) {
				t.Errorf("%+v: with %d drafts and draws that are put off %v, without %v", params, drafts, got, want)
			}
		}
		if cut != forbidden || cut == 0 {
			t.Errorf("%+v: %d drafts were not computed, %d are not allowed", params, cut, forbidden)
		}
	}
}
