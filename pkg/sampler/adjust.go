package sampler

import (
	"math"
	"slices"
)

// History is the tokens of a request so far. Penalties depend on it.
type History struct {
	// Prompt is what was asked.
	Prompt []int32
	// Generated is what was drawn before, in any try of the request.
	Generated []int32
	// Drafts were drawn after those, in the same step of an engine.
	Drafts []int32
}

// Output is all that was generated so far. Nobody changes it.
func (h History) Output() []int32 {
	if len(h.Drafts) == 0 {
		return h.Generated
	}
	return slices.Concat(h.Generated, h.Drafts)
}

// penalizes reports whether the history matters.
func (p Params) penalizes() bool { return p.repeats() || p.counts() }

func (p Params) repeats() bool { return p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1 }

func (p Params) counts() bool { return p.PresencePenalty != 0 || p.FrequencyPenalty != 0 }

// goesOn reports whether it is too early for Ends after so many tokens.
func (p Params) goesOn(offset uint64) bool {
	return len(p.Ends) > 0 && p.MinTokens > 0 && offset < uint64(p.MinTokens)
}

// adjust is the first step of Sample. It returns logits itself if nothing
// changes, else scratch memory.
func (s *Sampler) adjust(logits []float32, p Params, offset uint64, h History) []float32 {
	if len(p.LogitBias) == 0 && !p.penalizes() && !p.goesOn(offset) {
		return logits
	}
	s.adjusted = append(s.adjusted[:0], logits...)
	out := s.adjusted
	for _, b := range p.LogitBias {
		switch {
		case b.Token < 0 || int(b.Token) >= len(out):
		case b.Bias <= MinLogitBias:
			out[b.Token] = float32(math.Inf(-1))
		default:
			out[b.Token] += b.Bias
		}
	}
	if p.penalizes() {
		s.penalize(out, p, h)
	}
	if p.goesOn(offset) {
		s.forbid(out, p.Ends)
	}
	return out
}

// forbid makes the logits of tokens minus infinity, unless no other is above that.
func (s *Sampler) forbid(logits []float32, tokens []int32) {
	least := float32(math.Inf(-1))
	s.forbidden = s.forbidden[:0]
	for _, id := range tokens {
		if id >= 0 && int(id) < len(logits) {
			s.forbidden = append(s.forbidden, TokenBias{Token: id, Bias: logits[id]})
			logits[id] = least
		}
	}
	for _, l := range logits {
		if l > least {
			return
		}
	}
	for _, was := range slices.Backward(s.forbidden) { // one may be there twice
		logits[was.Token] = was.Bias
	}
}

// listed marks, in Sampler.times, a token that is in Sampler.seen. The other bits
// count how often it was generated.
const listed = 1 << 31

// penalize takes a time that grows with the history, and leaves s.times all zero.
func (s *Sampler) penalize(logits []float32, p Params, h History) {
	if cap(s.times) < len(logits) {
		s.times = make([]uint32, len(logits))
	}
	s.times = s.times[:len(logits)]
	s.seen = s.seen[:0]
	if p.repeats() {
		s.note(h.Prompt, 0)
	}
	s.note(h.Generated, 1)
	s.note(h.Drafts, 1)
	for _, id := range s.seen {
		l := logits[id]
		if p.repeats() {
			if l > 0 {
				l /= p.RepetitionPenalty
			} else {
				l *= p.RepetitionPenalty
			}
			l = float32(l) // rounded: not fused with what follows
		}
		if n := s.times[id] &^ listed; n > 0 && p.counts() {
			l = float32(l - float32(p.FrequencyPenalty*float32(n)))
			l = float32(l - p.PresencePenalty)
		}
		logits[id] = l
		s.times[id] = 0
	}
}

// note counts tokens, each by so many. What is outside the vocabulary is ignored.
func (s *Sampler) note(tokens []int32, by uint32) {
	for _, id := range tokens {
		if id < 0 || int(id) >= len(s.times) {
			continue
		}
		if s.times[id] == 0 {
			s.times[id] = listed
			s.seen = append(s.seen, id)
		}
		s.times[id] += by
	}
}
