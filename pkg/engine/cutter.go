package engine

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Cutter takes drafts that constraints do not allow out of batches. The zero Cutter is ready,
// for one engine and one batch at a time.
type Cutter struct {
	sequences []Sequence
	samples   []Sample
}

// Cut is the batch without each sequence's drafts from the first one on that its constraint does not
// allow, and how many those were. They are wrong, or their mask was put off, and then the draw in the
// place of the first is put off too: either way nothing that a Step gives changes without them. The
// batch that it was made of stays as it is. What Cut returns is valid until the next call.
func (c *Cutter) Cut(b Batch) (out Batch, cut int) {
	for i := range b.Sequences {
		s := &b.Sequences[i]
		n := s.disallowed()
		if n == 0 {
			continue
		}
		if cut == 0 {
			c.sequences = append(c.sequences[:0], b.Sequences...)
			// Not less: what it holds is pointed to.
			c.samples = append(c.samples[:0], make([]Sample, len(b.Sequences))...)
		}
		cut += n
		sample := &c.samples[i]
		*sample = *s.Sample
		sample.Drafts -= n
		c.sequences[i].Tokens, c.sequences[i].Sample = s.Tokens[:len(s.Tokens)-n], sample
	}
	if cut > 0 {
		b.Sequences = c.sequences
	}
	return b, cut
}

// disallowed is how many drafts of a sequence there are from the first one on that its constraint does
// not allow.
func (s *Sequence) disallowed() int {
	if s.Sample == nil || s.Sample.Drafts == 0 || s.Sample.Constraint == nil {
		return 0
	}
	constraint := s.Sample.DraftConstraint()
	drafts, generated := s.drafts(), s.Sample.History.Generated
	output := slices.Concat(generated, drafts)
	for i, draft := range drafts {
		allowed := constraint.Allowed(output[:len(generated)+i])
		if word := int(draft >> 6); word >= len(allowed) || allowed[word]&(1<<(draft&63)) == 0 {
			return len(drafts) - i
		}
	}
	return 0
}

// draftable is a sampler.Constraint that counts the work for drafts apart.
type draftable interface {
	// ForDrafts allows the same, for drafts. It is the same one each time, for the same goroutine.
	ForDrafts() sampler.Constraint
}

// DraftConstraint is Constraint for asking about drafts, which may be wrong, so that they do not use up the
// work that the output may take.
func (s *Sample) DraftConstraint() sampler.Constraint {
	if c, is := s.Constraint.(draftable); is {
		return c.ForDrafts()
	}
	return s.Constraint
}

// CutDrafts says that so many drafts were not computed: none of them is what was drawn.
func (o *Output) CutDrafts(b Batch, cut int) {
	if o.Cut = cut; cut > 0 && o.Accepted == nil {
		o.Accepted = make([]int32, len(b.Sequences))
	}
}
