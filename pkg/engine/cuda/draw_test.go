package cuda_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// What the device draws is what pkg/sampler draws from the same logits. They round weights
// differently, in the 14th digit, which no draw of these comes near.
func TestDraws(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "llama-llama3"))
	const sequences, draws = 6, 12
	e := newEngine(t, w, cuda.Config{Blocks: 40, MaxBatchTokens: 64, MaxSequences: sequences})
	s := sampler.New()
	params := []sampler.Params{
		{}, {Temperature: 1}, {Temperature: 0.7, TopP: 0.9}, {Temperature: 1.5, TopK: 20}, {Temperature: 1.2, TopK: 30, TopP: 0.8, MinP: 0.02},
		{Temperature: 2, MinP: 0.05}, {Temperature: 1, TopK: 1}, {Temperature: 1, RepetitionPenalty: 1.3},
		{Temperature: 1.5, TypicalP: 0.6}, {Temperature: 1, MinTokens: 30, Ends: []int32{5, 6, 7, 8, 9, 10}},
	}
	different := 0
	for n := range draws {
		var batch []engine.Sequence
		for i := range sequences {
			p := params[(n+i)%len(params)]
			p.Seed = uint64(1000*n + i)
			batch = append(batch, engine.Sequence{
				Tokens: []int32{int32(3 + n), int32(5 + i)}, Blocks: table(2*i, 1), Logits: engine.LogitsLast,
				Sample: &engine.Sample{Params: p, Offset: uint64(7 * n)},
			})
		}
		out := step(t, e, batch...)
		for i := range batch {
			batch[i].Logits = engine.LogitsNone
		}
		alone := step(t, e, batch...)
		if !slices.Equal(alone.Tokens, out.Tokens) {
			t.Errorf("with logits asked for the draws are %v, without %v", out.Tokens, alone.Tokens)
		}
		for i, token := range out.Tokens {
			sample := batch[i].Sample
			logits := out.Logits[i][0]
			if want := s.Sample(logits, sample.Params, sample.Offset, sample.History); token != want {
				t.Errorf("drew %d, pkg/sampler %d, with %+v", token, want, sample.Params)
			}
			greedy := s.Sample(logits, sampler.Params{}, 0, sample.History)
			if token != greedy {
				different++
			}
		}
	}
	if different < sequences*draws/4 {
		t.Errorf("only %d draws differ from the likeliest token: they say nothing", different)
	}
}
