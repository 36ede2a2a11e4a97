package engine

// forcing is a sampler.Constraint that knows text which has to come.
type forcing interface {
	// Forced is the beginning of that text, in at most so many tokens, and whether it ends with the last
	// of them: as ForcedTokens has it.
	Forced(generated []int32, most int) (tokens []int32, open bool)
}

// ForcedTokens is text that a constraint leaves no choice of, in the tokens that it likely comes in.
type ForcedTokens struct {
	Tokens []int32
	// Open: the text ends with the last token, in whose place a longer one may well come. If not, there is
	// more of the text, or the output ends.
	Open bool
}

// Forcer finds what constraints force after a Step. The zero Forcer is ready, for one batch at a time.
type Forcer struct{ output []int32 }

// Forced is, for each sequence with Sample.MostForced, what its constraint forces after what the Step
// gave; nil: nothing is. The caller may keep it.
func (f *Forcer) Forced(b Batch, o *Output) (all []ForcedTokens) {
	if len(o.Tokens) != len(b.Sequences) {
		return nil // the engine's fault, which others find
	}
	for i := range b.Sequences {
		s := &b.Sequences[i]
		if s.Sample == nil || s.Sample.MostForced == 0 || s.Sample.Constraint == nil || o.Tokens[i] < 0 {
			continue
		}
		constraint, is := s.Sample.DraftConstraint().(forcing)
		if !is {
			continue
		}
		f.output = append(f.output[:0], s.Sample.History.Generated...)
		if i < len(o.Accepted) {
			f.output = append(f.output, s.drafts()[:o.Accepted[i]]...)
		}
		f.output = append(f.output, o.Tokens[i])
		tokens, open := constraint.Forced(f.output, s.Sample.MostForced)
		if len(tokens) == 0 {
			continue
		}
		if all == nil {
			all = make([]ForcedTokens, len(b.Sequences))
		}
		all[i] = ForcedTokens{tokens, open}
	}
	return all
}
