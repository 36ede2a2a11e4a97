package sampler

import "math"

// Sampler holds the scratch memory of draws, so that they allocate nothing in
// the steady state. It keeps nothing from one draw to the next. It is for one
// goroutine.
type Sampler struct {
	allowed   []float32   // of SampleAllowed: adjusted logits of the tokens that are allowed, by id
	others    []uint64    // of later
	adjusted  []float32   // logits after step 1
	times     []uint32    // of penalize; all zero between draws
	seen      []int32     // of penalize
	forbidden []TokenBias // of forbid: what the logits were
	weights   []float64
	buckets   histogram
	order     []uint64   // of keep: the first tokens, as keys
	kept      []int32    // of keep
	left      []float64  // the weights of kept
	nearest   []surprise // of typical
	first     []int32    // of Logprobs
}

// New returns a Sampler.
func New() *Sampler { return &Sampler{} }

// None is what Sample gives for logits that no token can be drawn from.
const None int32 = -1

// Sample draws a token: an index into logits, which it does not change. offset
// is the number of tokens that the request generated before, and h what they and
// the prompt were; h is not read if p has no penalty. logits must not be empty.
//
// It is None if one of logits is NaN, or the largest is infinite: whoever computed
// them computed wrongly. Minus infinity beside finite ones is a token that is never
// drawn. What the parameters make of finite logits is the request's own affair.
//
// The definition, where "before" orders tokens by logit, larger first, and by id,
// smaller first, among equals:
//
//  1. Logits are adjusted, in float32, each operation rounded:
//     a. The bias of each token in LogitBias is added to its logit; MinLogitBias
//     makes it minus infinity instead.
//     b. The logit of each token in the prompt or generated is divided by
//     RepetitionPenalty if it is above 0, else multiplied by it.
//     c. From the logit of each token that was generated n times,
//     FrequencyPenalty·n is taken, and then PresencePenalty.
//     d. If offset is below MinTokens, the logits of Ends become minus infinity,
//     unless no other is above that.
//  2. With temperature 0 the draw is the first token. With any other:
//     weight[i] = exp((logit[i] - largest logit) / temperature)
//  3. TopK keeps the first TopK tokens.
//  4. TopP keeps the shortest beginning of those whose weights, added up in
//     order, reach TopP times the sum of the weights of what step 3 kept, added
//     up by id.
//  5. MinP drops tokens whose weight is below MinP.
//  6. TypicalP keeps the shortest beginning of the tokens that are left whose weights,
//     added up in order, reach TypicalP times the sum of the weights of all that are
//     left, added up by id. Here the order is by the distance of a token's
//     x = (logit - largest logit) / temperature from the mean of x, which is the sum of
//     weight·x by id, divided by that of the weights; and as before among equals. That is
//     the order of |-log(p) - H|, with H the entropy of what is left: see typical.
//  7. The draw is the first token, by id, at which the running sum of the weights
//     that are left exceeds Uniform(seed, offset) times their sum.
//
// The draw is also the first token if the largest adjusted logit is not finite.
func (s *Sampler) Sample(logits []float32, p Params, offset uint64, h History) int32 {
	best := argmax(logits)
	if best == None || math.IsInf(float64(logits[best]), 0) {
		return None
	}
	if own := s.adjust(logits, p, offset, h); &own[0] != &logits[0] {
		logits = own
		best = argmax(logits)
	}
	return s.sample(logits, best, p, offset)
}

// sample is Sample from step 2 on, of adjusted logits of which best is the first.
func (s *Sampler) sample(logits []float32, best int32, p Params, offset uint64) int32 {
	if p.Temperature == 0 || p.TopK == 1 {
		return best
	}
	if math.IsInf(float64(logits[best]), 0) {
		return best // nothing to weigh: all are forbidden, or one overflowed
	}
	byCount := p.TopK > 0 && p.TopK < len(logits)
	byMass := p.TopP > 0 && p.TopP < 1
	s.weigh(logits, logits[best], float64(p.Temperature), byCount || byMass)
	weights := s.weights
	if byCount || byMass {
		s.keep(logits, logits[best], p, byCount, byMass)
		s.left = s.left[:0]
		for _, id := range s.kept {
			s.left = append(s.left, s.weights[id])
		}
		weights = s.left
	}
	if p.TypicalP > 0 && p.TypicalP < 1 {
		drop(weights, float64(p.MinP))
		s.typical(logits, weights, byCount || byMass, logits[best], p)
	}
	drawn := draw(weights, float64(p.MinP), Uniform(p.Seed, offset))
	switch {
	case drawn < 0:
		return best
	case byCount || byMass:
		return s.kept[drawn]
	}
	return int32(drawn)
}

// weigh fills s.weights by step 2, and s.buckets if they are asked for.
func (s *Sampler) weigh(logits []float32, largest float32, temperature float64, count bool) {
	if cap(s.weights) < len(logits) {
		s.weights = make([]float64, len(logits))
	}
	s.weights = s.weights[:len(logits)]
	if !count {
		for id, l := range logits {
			s.weights[id] = exp((float64(l) - float64(largest)) / temperature)
		}
		return
	}
	s.buckets = histogram{}
	for id, l := range logits {
		x := (float64(l) - float64(largest)) / temperature
		w := exp(x)
		s.weights[id] = w
		s.buckets.add(x, w)
	}
}

// drop is step 5: the weights of what it drops become 0. It returns the sum of the others.
func drop(weights []float64, minimum float64) (sum float64) {
	for i, w := range weights {
		if w < minimum {
			weights[i] = 0
			continue
		}
		sum += w
	}
	return sum
}

// draw is steps 5 and 7: an index into weights, which it changes; -1 if nothing is
// left.
func draw(weights []float64, minimum, uniform float64) int {
	target := float64(uniform * drop(weights, minimum))
	var running float64
	drawn := -1
	for i, w := range weights {
		if w == 0 {
			continue
		}
		running += w
		drawn = i
		if running > target {
			break
		}
	}
	return drawn
}

// argmax is the first token in the order that Sample documents; None if there is a NaN.
// That costs nothing: a comparison with a NaN is false, so what is not known to be no
// larger is looked at.
func argmax(logits []float32) int32 {
	best, largest := 0, float32(math.Inf(-1))
	for i := 0; i < len(logits); i++ {
		// Most of a vocabulary is not larger than what was seen: eight at a time.
		for i+8 <= len(logits) {
			l := (*[8]float32)(logits[i:])
			if !(l[0] <= largest) || !(l[1] <= largest) || !(l[2] <= largest) || !(l[3] <= largest) ||
				!(l[4] <= largest) || !(l[5] <= largest) || !(l[6] <= largest) || !(l[7] <= largest) {
				break
			}
			i += 8
		}
		if i < len(logits) && !(logits[i] <= largest) {
			if best, largest = i, logits[i]; largest != largest {
				return None
			}
		}
	}
	return int32(best)
}

// before reports whether token a comes before b.
func before(logits []float32, a, b int32) bool {
	x, y := logits[a], logits[b]
	return x > y || x == y && a < b
}
