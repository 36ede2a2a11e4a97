package sampler_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// A draw of what is allowed is the draw of logits in which all else is minus infinity.
func TestSampleAllowed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	s := sampler.New()
	for round := range 500 {
		logits := make([]float32, 1+r.IntN(300))
		for i := range logits {
			logits[i] = float32(r.NormFloat64() * 4)
		}
		mask := make([]uint64, (len(logits)+63)/64)
		reduced := make([]float32, len(logits))
		allowed := 0
		for i := range reduced {
			reduced[i] = float32(math.Inf(-1))
			if r.IntN(4) == 0 {
				allowed++
				mask[i/64] |= 1 << (i % 64)
				reduced[i] = logits[i]
			}
		}
		p := sampler.Params{
			Temperature: float32(r.IntN(3)) * 0.7, TopK: r.IntN(5), TopP: float32(r.IntN(3)) * 0.4, MinP: float32(r.IntN(2)) * 0.05, Seed: uint64(round),
			RepetitionPenalty: float32(1 + r.IntN(2)), PresencePenalty: float32(r.IntN(2)),
		}
		h := sampler.History{Prompt: []int32{0}, Generated: []int32{int32(r.IntN(len(logits)))}}
		got := s.SampleAllowed(logits, mask, p, uint64(round), h)
		switch {
		case allowed == 0:
			if got != sampler.NoneAllowed {
				t.Fatalf("round %d: %d of nothing", round, got)
			}
		case got < 0 || mask[got/64]&(1<<(got%64)) == 0:
			t.Fatalf("round %d: %d is not allowed", round, got)
		case got != s.Sample(reduced, p, uint64(round), h):
			t.Fatalf("round %d: %d, of the reduced logits %d", round, got, s.Sample(reduced, p, uint64(round), h))
		}
	}
}

func TestNothingAllowed(t *testing.T) {
	s := sampler.New()
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		logits []float32
		mask   []uint64
		params sampler.Params
		want   int32
	}{
		"nothing":                           {[]float32{1, 2}, nil, sampler.Params{}, sampler.NoneAllowed},
		"what there is not":                 {[]float32{1, 2}, []uint64{4}, sampler.Params{}, sampler.NoneAllowed},
		"what is never drawn":               {[]float32{-inf, 2}, []uint64{1}, sampler.Params{}, sampler.NoneAllowed},
		"what a bias forbids":               {[]float32{1, 2, 3}, []uint64{2}, sampler.Params{LogitBias: []sampler.TokenBias{{Token: 1, Bias: sampler.MinLogitBias}}}, sampler.NoneAllowed},
		"what is not finite elsewhere":      {[]float32{1, nan}, []uint64{1}, sampler.Params{}, sampler.None},
		"what is infinite elsewhere":        {[]float32{1, inf}, []uint64{1}, sampler.Params{}, sampler.None},
		"what is unlikely":                  {[]float32{-100, 100}, []uint64{1}, sampler.Params{Temperature: 1, TopP: 0.1}, 0},
		"bits beyond the vocabulary do not": {[]float32{1, 2}, []uint64{2, 1}, sampler.Params{}, 1},
	} {
		if got := s.SampleAllowed(c.logits, c.mask, c.params, 0, sampler.History{}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
