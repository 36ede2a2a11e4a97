package engine

import "slices"

// forcing is a sampler.Constraint that knows text which has to come.
type forcing interface {
	// Forced is the beginning of that text, in at most so many tokens, and whether it ends with the last
	// of them: as ForcedTokens has it.
	Forced(generated []int32, most int) (tokens []int32, open bool)
}

// ForcedTokens is text that a constraint leaves no choice of, in the tokens that it most likely comes in.
type ForcedTokens struct {
	Tokens []int32
	// Open: the text ends with the last token, in whose place a longer one may well come.
	Open bool
}

// Forced is what Constraint forces after the tokens that were generated so far, at most so many.
func (s *Sample) Forced(generated []int32, most int) (f ForcedTokens) {
	if c, is := s.DraftConstraint().(forcing); is {
		f.Tokens, f.Open = c.Forced(generated, most)
	}
	return f
}

// Forced is, for each sequence whose Sample asks for it, what its constraint forces after what the Step
// gave; nil: nothing is.
func (o *Output) Forced(b Batch) (all []ForcedTokens) {
	for i := range b.Sequences {
		s := &b.Sequences[i]
		if s.Sample == nil || s.Sample.MostForced == 0 || s.Sample.Constraint == nil || o.Tokens[i] < 0 {
			continue
		}
		output := s.Sample.History.Generated
		if s.Sample.Drafts > 0 {
			output = slices.Concat(output, s.drafts()[:o.Accepted[i]])
		}
		forced := s.Sample.Forced(append(output[:len(output):len(output)], o.Tokens[i]), s.Sample.MostForced)
		if len(forced.Tokens) == 0 {
			continue
		}
		if all == nil {
			all = make([]ForcedTokens, len(b.Sequences))
		}
		all[i] = forced
	}
	return all
}
