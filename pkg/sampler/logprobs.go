package sampler

import "math"

// MaxTopLogprobs is the most of the likeliest tokens that are reported.
const MaxTopLogprobs = 20

// Logprobs says how likely a token was.
type Logprobs struct {
	// Drawn is the natural logarithm of the probability of the token drawn.
	Drawn float32
	// Top is the likeliest tokens, likeliest first.
	Top []Logprob
	// Rank is the token's place in the order that Sample documents, from 1; 0: it was not
	// asked for.
	Rank int32
}

// Logprob says how likely one token was.
type Logprob struct {
	Token   int32
	Logprob float32
}

// Logprobs says how likely drawn, an index into logits, was, and which top tokens
// were the likeliest; fewer if the vocabulary is smaller. logits are the model's
// own, from which Sample drew: none is NaN, and no temperature, penalty or bias
// counts. Nothing of s is in the result.
//
// The definition, with the order of tokens that Sample documents:
//
//  1. d[i] = logit[i] - largest logit, in float64.
//  2. sum = the exp(d[i]) added up by id.
//  3. The result for token i is d[i] - log(sum), rounded to float32.
//
// The likeliest tokens are the first ones of the order.
func (s *Sampler) Logprobs(logits []float32, drawn int32, top int) Logprobs {
	largest := logits[argmax(logits)]
	top = min(top, len(logits))
	s.first = s.first[:0]
	below := func(l float32) float64 { return float64(l) - float64(largest) }
	var sum float64
	var last float32 // of s.first
	for id, l := range logits {
		sum += exp(below(l))
		if len(s.first) < top || top > 0 && l > last {
			s.offer(logits, int32(id), top)
			last = logits[s.first[len(s.first)-1]]
		}
	}
	whole := log(sum)
	of := func(id int32) float32 {
		d := below(logits[id])
		if math.IsInf(d, -1) {
			return float32(d)
		}
		return float32(d - whole)
	}
	out := Logprobs{Drawn: of(drawn)}
	if top > 0 {
		out.Top = make([]Logprob, top)
		for i, id := range s.first {
			out.Top[i] = Logprob{Token: id, Logprob: of(id)}
		}
	}
	return out
}

// PromptLogprobs is Logprobs of a token of a prompt, with its rank. Logits that no token can be
// drawn from give NaN.
func (s *Sampler) PromptLogprobs(logits []float32, token int32, top int) Logprobs {
	if best := argmax(logits); best == None || math.IsInf(float64(logits[best]), 0) {
		return Logprobs{Drawn: float32(math.NaN())}
	}
	out := s.Logprobs(logits, token, top)
	out.Rank = 1
	for id := range logits {
		if before(logits, int32(id), token) {
			out.Rank++
		}
	}
	return out
}

// offer puts a token among the first so many of the order, if it belongs there.
// Ids come in rising order.
func (s *Sampler) offer(logits []float32, id int32, most int) {
	n := len(s.first)
	if n == most {
		if !before(logits, id, s.first[n-1]) {
			return
		}
		n--
	} else {
		s.first = append(s.first, id)
	}
	for ; n > 0 && before(logits, id, s.first[n-1]); n-- {
		s.first[n] = s.first[n-1]
	}
	s.first[n] = id
}
