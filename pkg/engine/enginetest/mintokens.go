package enginetest

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// many is half of a vocabulary.
func many(vocabulary int) (tokens []int32) {
	for id := int32(0); int(id) < vocabulary; id += 2 {
		tokens = append(tokens, id)
	}
	return tokens
}

// testMinTokens: before Params.MinTokens tokens none of Params.Ends is drawn, and from then on the
// draw is what it would be without, greedy or not, also beside others that have no such bound.
func testMinTokens(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 9, 17)
	blocks := len(blocksFor(e, len(p), 0))
	at := func(place int, params sampler.Params, offset uint64) engine.Sequence {
		return engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p), place*blocks), Sample: &engine.Sample{Params: params, Offset: offset}}
	}
	const least = 3
	for _, params := range []sampler.Params{{}, {Temperature: 0.9, Seed: 4}} {
		early := mustStep(t, e, at(0, params, least-1)).Tokens[0]
		late := mustStep(t, e, at(0, params, least)).Tokens[0]
		held := params
		held.MinTokens, held.Ends = least, []int32{early, late}
		got := mustStep(t, e, at(0, params, least-1), at(1, held, least-1), at(2, held, least)).Tokens
		if got[0] != early || got[2] != late || slices.Contains(held.Ends, got[1]) {
			t.Errorf("temperature %v: tokens %v; without a bound %d, then %d, which would end the text", params.Temperature, got, early, late)
		}
	}
}
