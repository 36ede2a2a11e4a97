package sampler

import (
	"math"
	"math/bits"
)

// Constraint says which tokens an output may go on with. It is for one output and one goroutine.
type Constraint interface {
	// Allowed is the tokens that may come after those that the request generated so far, a
	// bit for each id: id is that of bit id%64 of word id/64. Nil allows none. Nobody changes
	// it, and it is valid until the next call. What was allowed after some tokens is always
	// allowed after them.
	Allowed(generated []int32) []uint64
}

// NoneAllowed is what SampleAllowed gives where no token can be drawn that is allowed.
const NoneAllowed int32 = -2

// SampleAllowed is Sample of the tokens that are allowed: the logits of others become minus
// infinity before step 1. None comes of logits that Sample draws none from; NoneAllowed, where
// no token is allowed, or where what the parameters make of the logits forbids all that are.
func (s *Sampler) SampleAllowed(logits []float32, allowed []uint64, p Params, offset uint64, h History) int32 {
	if best := argmax(logits); best == None || math.IsInf(float64(logits[best]), 0) {
		return None
	}
	least := float32(math.Inf(-1))
	if cap(s.allowed) < len(logits) {
		s.allowed = make([]float32, len(logits))
	}
	out := s.allowed[:len(logits)]
	finite := false
	for i := range out {
		out[i] = least
	}
	for word, left := range allowed {
		for ; left != 0; left &= left - 1 {
			if id := word<<6 + bits.TrailingZeros64(left); id < len(out) {
				out[id] = logits[id]
				finite = finite || logits[id] > least
			}
		}
	}
	if !finite {
		return NoneAllowed
	}
	token := s.Sample(out, p, offset, h)
	if token >= 0 && allowed[token>>6]&(1<<(token&63)) == 0 {
		return NoneAllowed // the parameters left none
	}
	return token
}
