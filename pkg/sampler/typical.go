package sampler

import (
	"cmp"
	"math"
	"slices"
)

// surprise is a token that step 6 orders.
type surprise struct {
	distance float64
	weight   float64
	logit    float32
	at       int32 // index into the weights, by rising id
}

// typical is step 6, locally typical sampling (Meister, Pimentel, Wiher and Cotterell, "Locally
// Typical Sampling", TACL 2023, equation 10): the weights of what it drops become 0. weights are
// those of s.kept or, if none are picked, of all tokens.
//
// With p = exp(x)/S, S the sum of exp(x) and m the mean of x, a token's surprise is
// -log(p) = log(S) - x, the entropy H = log(S) - m, and so |-log(p) - H| = |x - m|: neither a
// logarithm nor the entropy is needed.
//
// As in keep, only the beginning of the order is sorted where the buckets say that this is enough.
func (s *Sampler) typical(logits []float32, weights []float64, picked bool, largest float32, p Params) {
	temperature := float64(p.Temperature)
	logit := func(i int) float32 {
		if picked {
			return logits[s.kept[i]]
		}
		return logits[i]
	}
	x := func(i int) float64 { return (float64(logit(i)) - float64(largest)) / temperature }
	var sum, mean float64
	for i, w := range weights {
		if w > 0 {
			sum += w
			mean += float64(w * x(i))
		}
	}
	mean /= sum
	target := float64(float64(p.TypicalP) * sum)
	s.buckets = histogram{}
	for i, w := range weights {
		if w > 0 {
			s.buckets.add(-math.Abs(x(i)-mean), w)
		}
	}
	// As a logit, that distance is below one of 0 at a temperature of 1.
	limit := -s.buckets.reach(0, 1, func(_ int, mass float64) bool { return mass > target })
	n, reached := s.near(limit, target, weights, logit, func(i int) float64 { return math.Abs(x(i) - mean) })
	if !reached && !math.IsInf(limit, 1) {
		n, _ = s.near(math.Inf(1), target, weights, logit, func(i int) float64 { return math.Abs(x(i) - mean) })
	}
	clear(weights)
	for _, near := range s.nearest[:n] {
		weights[near.at] = near.weight
	}
}

// near sorts the tokens within a distance into s.nearest, and is how many of them it takes until
// their weights add up to target, and whether they do.
func (s *Sampler) near(limit, target float64, weights []float64, logit func(int) float32, distance func(int) float64) (n int, reached bool) {
	s.nearest = s.nearest[:0]
	for i, w := range weights {
		if w == 0 {
			continue
		}
		if d := distance(i); d <= limit {
			s.nearest = append(s.nearest, surprise{d, w, logit(i), int32(i)})
		}
	}
	slices.SortFunc(s.nearest, func(a, b surprise) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(b.logit, a.logit), cmp.Compare(a.at, b.at))
	})
	var running float64
	for i := range s.nearest {
		if running += s.nearest[i].weight; running >= target {
			return i + 1, true
		}
	}
	return len(s.nearest), false
}
