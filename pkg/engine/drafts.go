package engine

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// drafts are those of a sequence's tokens that may not be what is drawn.
func (s *Sequence) drafts() []int32 { return s.Tokens[len(s.Tokens)-s.Sample.Drafts:] }

// Rows is how many tokens may be drawn for a sequence: one after each draft, and one before
// them; 0 if none is asked for.
func (s *Sequence) Rows() int {
	if s.Sample == nil {
		return 0
	}
	return 1 + s.Sample.Drafts
}

// Draw takes the draws of a sequence, the i-th of a batch, one after the other: the row-th
// draw is that after so many drafts. Those behind a draft that was wrong are not made. draw
// draws a token, and logprobs says how likely one is. An engine calls it with rising rows.
func (o *Output) Draw(b Batch, i, row int, draw func(offset uint64, h sampler.History) int32, logprobs func(token int32) sampler.Logprobs) {
	s := &b.Sequences[i]
	sample := s.Sample
	if sample.Drafts > 0 {
		if o.Accepted == nil {
			o.Accepted = make([]int32, len(b.Sequences))
		}
		if int(o.Accepted[i]) < row {
			return
		}
	}
	drafts, history := s.drafts(), sample.History
	history.Drafts = drafts[:row]
	token := draw(sample.Offset+uint64(row), history)
	o.Tokens[i] = token
	accepted := row < sample.Drafts && token == drafts[row]
	if accepted {
		o.Accepted[i]++
	}
	if !sample.Logprobs || token < 0 {
		return
	}
	if o.Logprobs == nil {
		o.Logprobs = make([]sampler.Logprobs, len(b.Sequences))
	}
	o.Logprobs[i] = logprobs(token)
	if accepted {
		if o.DraftLogprobs == nil {
			o.DraftLogprobs = make([][]sampler.Logprobs, len(b.Sequences))
		}
		o.DraftLogprobs[i] = append(o.DraftLogprobs[i], o.Logprobs[i])
	}
}

func (s *Sequence) validateDrafts(capacity *Capacity) error {
	n := s.Sample.Drafts
	switch {
	case n < 0 || n > capacity.MaxDrafts:
		return fmt.Errorf("sampling: %d drafts are outside 0 to %d", n, capacity.MaxDrafts)
	case n >= len(s.Tokens):
		return fmt.Errorf("sampling: %d drafts leave none of %d tokens to draw after", n, len(s.Tokens))
	}
	return nil
}
