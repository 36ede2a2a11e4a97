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

// OutOfEffort is what a draw gives in place of NoneAllowed where the constraint has used up the
// work that one output may take.
const OutOfEffort int32 = -3

// Later is what a draw gives in place of NoneAllowed where the constraint did not begin to find what it
// allows, since others took the work of the step: the same draw in a later step gives a token.
const Later int32 = -4

// SampleAllowed is Sample of the tokens that are allowed: the logits of others become minus
// infinity before step 1. None comes of logits that Sample draws none from; NoneAllowed, where
// no token is allowed, or where what the parameters make of the logits forbids all that are.
func (s *Sampler) SampleAllowed(logits []float32, allowed []uint64, p Params, offset uint64, h History) int32 {
	if best := argmax(logits); best == None || math.IsInf(float64(logits[best]), 0) {
		return None
	}
	early := p.goesOn(offset)
	p.MinTokens = 0 // of the tokens that are allowed: see later
	logits = s.adjust(logits, p, offset, h)
	if early {
		allowed = s.later(logits, allowed, p.Ends)
	}
	// The others weigh nothing, so the draw is that of the allowed ones alone.
	s.allowed = s.allowed[:0]
	for word, left := range allowed {
		first := word << 6
		if left == math.MaxUint64 && first+64 <= len(logits) {
			s.allowed = append(s.allowed, logits[first:first+64]...)
			continue
		}
		for ; left != 0; left &= left - 1 {
			if id := first + bits.TrailingZeros64(left); id < len(logits) {
				s.allowed = append(s.allowed, logits[id])
			}
		}
	}
	if len(s.allowed) == 0 {
		return NoneAllowed
	}
	drawn := int32(0)
	if len(s.allowed) > 1 {
		if drawn = argmax(s.allowed); drawn >= 0 {
			drawn = s.sample(s.allowed, drawn, p, offset)
		}
	}
	if drawn < 0 || math.IsInf(float64(s.allowed[drawn]), -1) {
		return NoneAllowed // the parameters left none
	}
	return nth(allowed, int(drawn))
}

// later is the tokens that are allowed but for ends, or all of them if no other can be drawn.
func (s *Sampler) later(logits []float32, allowed []uint64, ends []int32) []uint64 {
	s.others = append(s.others[:0], allowed...)
	for _, id := range ends {
		if id >= 0 && int(id>>6) < len(s.others) {
			s.others[id>>6] &^= 1 << (id & 63)
		}
	}
	for word, left := range s.others {
		for ; left != 0; left &= left - 1 {
			if id := word<<6 + bits.TrailingZeros64(left); id < len(logits) && !math.IsInf(float64(logits[id]), -1) {
				return s.others
			}
		}
	}
	return allowed
}

// nth is the id of the n-th token that is allowed, from 0.
func nth(allowed []uint64, n int) int32 {
	for word, left := range allowed {
		if count := bits.OnesCount64(left); n >= count {
			n -= count
			continue
		}
		for range n {
			left &= left - 1
		}
		return int32(word<<6 + bits.TrailingZeros64(left))
	}
	return NoneAllowed
}
