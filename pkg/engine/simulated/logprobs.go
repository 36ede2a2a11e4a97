package simulated

import (
	"math"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// logprobs makes up how likely a token was, as the token was made up: it has
// probability 1/2, the token with the next id 1/4, and so on. Penalties and biases
// have no effect on the tokens of a simulated engine.
func (e *Engine) logprobs(drawn int32, top int) sampler.Logprobs {
	halves := func(n int) float32 { return float32(-float64(n) * math.Ln2) }
	out := sampler.Logprobs{Drawn: halves(1)}
	for i := range min(top, e.cfg.Spec.VocabSize) {
		token := (int64(drawn) + int64(i)) % int64(e.cfg.Spec.VocabSize)
		out.Top = append(out.Top, sampler.Logprob{Token: int32(token), Logprob: halves(i + 1)})
	}
	return out
}
