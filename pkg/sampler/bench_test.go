package sampler_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

func BenchmarkSample(b *testing.B) {
	chance := rand.New(rand.NewPCG(1, 2))
	even, peaked := make([]float32, 128256), make([]float32, 128256)
	for i := range even {
		even[i] = float32(i*7919%1000) / 100
		peaked[i] = float32(chance.NormFloat64()*2 + chance.ExpFloat64()*1.2)
	}
	h := sampler.History{Prompt: make([]int32, 4000), Generated: make([]int32, 1000)}
	for _, tokens := range [][]int32{h.Prompt, h.Generated} {
		for i := range tokens {
			tokens[i] = chance.Int32N(int32(len(even)))
		}
	}
	for _, c := range []struct {
		name   string
		logits []float32
		params sampler.Params
	}{
		{"greedy", even, sampler.Params{}},
		{"temperature", even, sampler.Params{Temperature: 0.8}},
		{"top_p", even, sampler.Params{Temperature: 0.8, TopP: 0.95}},
		{"top_p/peaked", peaked, sampler.Params{Temperature: 0.8, TopP: 0.95}},
		{"top_k", even, sampler.Params{Temperature: 0.8, TopK: 40}},
		{"penalties", even, sampler.Params{RepetitionPenalty: 1.1, PresencePenalty: 0.5, FrequencyPenalty: 0.5}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := sampler.New()
			for i := range b.N {
				s.Sample(c.logits, c.params, uint64(i), h)
			}
		})
	}
	b.Run("logprobs", func(b *testing.B) {
		s := sampler.New()
		for range b.N {
			s.Logprobs(even, 3, 20)
		}
	})
}
