package engine

import "slices"

// LogitRows is how many rows of a sequence, from the last on, become logits.
func (s *Sequence) LogitRows() int {
	switch {
	case s.Logits == LogitsAll || s.Prompt != nil:
		return len(s.Tokens)
	case s.Logits == LogitsLast:
		return max(s.Rows(), 1)
	}
	return s.Rows()
}

// LogitsRow takes the logits after the at-th token of a sequence, the i-th of a batch, if the sequence
// asks for them. An engine calls it with rising rows, and keeps logits.
func (o *Output) LogitsRow(b Batch, i, at int, logits []float32) {
	s := &b.Sequences[i]
	if s.Logits == LogitsNone || s.Logits == LogitsLast && at+1 < len(s.Tokens) {
		return
	}
	if o.Logits == nil {
		o.Logits = make([][][]float32, len(b.Sequences))
	}
	o.Logits[i] = append(o.Logits[i], slices.Clone(logits))
}
