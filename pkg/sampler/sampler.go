package sampler

import (
	"container/heap"
	"math"
)

// Sampler holds the scratch memory of draws, so that they allocate nothing in
// the steady state. It keeps nothing from one draw to the next. It is for one
// goroutine.
type Sampler struct {
	weights []float64
	order   candidates
	kept    []int32
}

// New returns a Sampler.
func New() *Sampler { return &Sampler{} }

// Sample draws a token: an index into logits, which it does not change. offset
// is the number of tokens that the request generated before. A NaN counts as
// minus infinity. logits must not be empty.
//
// The definition, for temperature above 0, where "before" orders tokens by
// logit, larger first, and by id, smaller first, among equals:
//
//  1. weight[i] = exp((logit[i] - largest logit) / temperature)
//  2. TopK keeps the first TopK tokens.
//  3. TopP keeps the shortest beginning of those whose weights, added up in
//     order, reach TopP times the sum of the weights of what step 2 kept, added
//     up by id.
//  4. MinP drops tokens whose weight is below MinP.
//  5. The draw is the first token, by id, at which the running sum of the weights
//     that are left exceeds Uniform(seed, offset) times their sum.
//
// With temperature 0 it is the first token.
func (s *Sampler) Sample(logits []float32, p Params, offset uint64) int32 {
	best := argmax(logits)
	if p.Temperature == 0 || p.TopK == 1 {
		return best
	}
	if math.IsInf(float64(logits[best]), 0) || logits[best] != logits[best] {
		return best // nothing to weigh: all minus infinity, or overflow
	}
	s.weigh(logits, logits[best], float64(p.Temperature))
	last := s.keep(logits, p)
	minimum := float64(p.MinP)
	var sum float64
	for id, w := range s.weights {
		if w < minimum || (last >= 0 && before(logits, last, int32(id))) {
			s.weights[id] = 0
			continue
		}
		sum += w
	}
	target := float64(Uniform(p.Seed, offset) * sum)
	var running float64
	drawn := best
	for id, w := range s.weights {
		if w == 0 {
			continue
		}
		running += w
		drawn = int32(id)
		if running > target {
			break
		}
	}
	return drawn
}

// weigh fills s.weights by step 1.
func (s *Sampler) weigh(logits []float32, largest float32, temperature float64) {
	if cap(s.weights) < len(logits) {
		s.weights = make([]float64, len(logits))
	}
	s.weights = s.weights[:len(logits)]
	for id, l := range logits {
		s.weights[id] = exp((float64(l) - float64(largest)) / temperature)
	}
}

// keep is steps 2 and 3. It returns the last token that is kept, -1 if all are.
// A heap gives the order as far as it is needed, which is rarely far.
func (s *Sampler) keep(logits []float32, p Params) int32 {
	byCount := p.TopK > 0 && p.TopK < len(logits)
	byMass := p.TopP > 0 && p.TopP < 1
	if !byCount && !byMass {
		return -1
	}
	s.order.logits = logits
	s.order.ids = s.order.ids[:0]
	for id := range logits {
		s.order.ids = append(s.order.ids, int32(id))
	}
	heap.Init(&s.order)
	limit := len(logits)
	if byCount {
		limit = p.TopK
	}
	if !byMass {
		var last int32
		for range limit {
			last = s.order.next()
		}
		return last
	}
	return s.reach(limit, byCount, float64(p.TopP))
}

// reach finds the token at which the running sum of the first limit tokens
// reaches its share. If TopK cut before, the sum of what it kept is needed first.
func (s *Sampler) reach(limit int, cut bool, share float64) int32 {
	var total float64
	if !cut {
		for _, w := range s.weights {
			total += w
		}
	}
	kept := s.kept[:0]
	if cut {
		for range limit {
			kept = append(kept, s.order.next())
		}
		s.kept = kept
		total = s.sumByID(kept)
	}
	target := share * total
	var running float64
	var last int32
	for i := range limit {
		if cut {
			last = kept[i]
		} else {
			last = s.order.next()
		}
		running += s.weights[last]
		if running >= target {
			break
		}
	}
	return last
}

// sumByID adds the weights of ids in the order of ids' values.
func (s *Sampler) sumByID(ids []int32) float64 {
	last := ids[len(ids)-1]
	var sum float64
	for id, w := range s.weights {
		if !before(s.order.logits, last, int32(id)) {
			sum += w
		}
	}
	return sum
}

// argmax is the first token in the order that Sample documents.
func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] || (logits[best] != logits[best] && l == l) {
			best = i
		}
	}
	return int32(best)
}

// before reports whether token a comes before b.
func before(logits []float32, a, b int32) bool {
	x, y := logits[a], logits[b]
	if x != y && (x == x || y == y) {
		return x > y || y != y
	}
	return a < b
}

// candidates is a heap of tokens, the first in order at its top.
type candidates struct {
	logits []float32
	ids    []int32
}

func (c *candidates) Len() int           { return len(c.ids) }
func (c *candidates) Less(i, j int) bool { return before(c.logits, c.ids[i], c.ids[j]) }
func (c *candidates) Swap(i, j int)      { c.ids[i], c.ids[j] = c.ids[j], c.ids[i] }
func (c *candidates) Push(any)           {}
func (c *candidates) Pop() any           { c.ids = c.ids[:len(c.ids)-1]; return nil }

// next removes the first token in order and returns it.
func (c *candidates) next() int32 {
	first := c.ids[0]
	heap.Pop(c)
	return first
}
