package sampler

import (
	"math"
	"slices"
)

// keep is steps 3 and 4: s.kept becomes the tokens that are kept, by id. Only the
// beginning of the order is sorted: the buckets say about how much of it is
// needed, and should that be too little, all of it is.
func (s *Sampler) keep(logits []float32, largest float32, p Params, byCount, byMass bool) {
	limit := len(logits)
	if byCount {
		limit = p.TopK
	}
	var target float64
	if !byCount {
		var total float64
		for _, w := range s.weights {
			total += w
		}
		target = float64(float64(p.TopP) * total)
		s.sort(logits, s.buckets.reach(largest, p.Temperature, func(_ int, mass float64) bool { return mass > target }))
	} else {
		s.sort(logits, s.buckets.reach(largest, p.Temperature, func(tokens int, _ float64) bool { return tokens >= limit }))
	}
	if byCount {
		if len(s.order) < limit {
			s.sort(logits, math.Inf(-1))
		}
		s.order = s.order[:limit]
		if byMass {
			target = float64(float64(p.TopP) * s.sumByID())
		}
	}
	if byMass {
		n, reached := s.beginning(target)
		if !reached && len(s.order) < limit {
			s.sort(logits, math.Inf(-1))
			n, _ = s.beginning(target)
		}
		s.order = s.order[:n]
	}
	s.collect()
}

// sort fills s.order with the tokens whose logit is at least cutoff, in order: a
// beginning of it.
func (s *Sampler) sort(logits []float32, cutoff float64) {
	s.order = s.order[:0]
	for id, l := range logits {
		if float64(l) >= cutoff {
			s.order = append(s.order, key(l, int32(id)))
		}
	}
	slices.Sort(s.order)
}

// key is smaller for what comes before.
func key(l float32, id int32) uint64 {
	if l == 0 {
		l = 0 // one zero, not two
	}
	place := math.Float32bits(l)
	if place>>31 == 0 {
		place = ^place &^ (1 << 31)
	}
	return uint64(place)<<32 | uint64(uint32(id))
}

// beginning is how many tokens of s.order it takes until their weights add up to
// target, and whether they do.
func (s *Sampler) beginning(target float64) (n int, reached bool) {
	var running float64
	for i, k := range s.order {
		running += s.weights[uint32(k)]
		if running >= target {
			return i + 1, true
		}
	}
	return len(s.order), false
}

// collect makes s.kept of s.order.
func (s *Sampler) collect() {
	s.kept = s.kept[:0]
	for _, k := range s.order {
		s.kept = append(s.kept, int32(uint32(k)))
	}
	slices.Sort(s.kept)
}

// sumByID adds the weights of s.order by id.
func (s *Sampler) sumByID() float64 {
	s.collect()
	var sum float64
	for _, id := range s.kept {
		sum += s.weights[id]
	}
	return sum
}

// histogram counts tokens and weights by how far a token is below the largest.
type histogram struct {
	tokens [buckets]int
	mass   [buckets]float64
}

const (
	buckets   = 256
	perNatLog = 8 // buckets for each factor e of weight
)

// add takes in a token of weight e^x.
func (h *histogram) add(x, weight float64) {
	i := buckets - 1
	if x > -(buckets-1.)/perNatLog {
		i = int(-x * perNatLog)
	}
	h.tokens[i]++
	h.mass[i] += weight
}

// reach is a logit that the likeliest tokens for which enough holds have at least,
// but for rounding; minus infinity if that may be all.
func (h *histogram) reach(largest, temperature float32, enough func(tokens int, mass float64) bool) float64 {
	tokens, mass := 0, 0.
	for i := range buckets - 1 {
		tokens += h.tokens[i]
		mass += h.mass[i]
		if enough(tokens, mass) {
			return float64(largest) - float64(i+1)/perNatLog*float64(temperature)
		}
	}
	return math.Inf(-1)
}
