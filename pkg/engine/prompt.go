package engine

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// PromptRow takes the logits after the at-th token of a sequence, the i-th of a batch, if the
// sequence asks how likely the token after it is. An engine calls it with rising rows, so that no
// more of their logits than it likes have to be there at a time.
func (o *Output) PromptRow(b Batch, i, at int, logprobs func(token int32, top int) sampler.Logprobs) {
	asked := b.Sequences[i].Prompt
	if asked == nil || at >= len(asked.Next) {
		return
	}
	if o.PromptLogprobs == nil {
		o.PromptLogprobs = make([][]sampler.Logprobs, len(b.Sequences))
	}
	o.PromptLogprobs[i] = append(o.PromptLogprobs[i], logprobs(asked.Next[at], asked.Top))
}

func (s *Sequence) validatePrompt(vocabulary int) error {
	switch n := len(s.Prompt.Next); {
	case n > len(s.Tokens):
		return fmt.Errorf("prompt: %d tokens come after %d", n, len(s.Tokens))
	case s.Prompt.Top < 0 || s.Prompt.Top > sampler.MaxTopLogprobs:
		return fmt.Errorf("prompt: %d likeliest tokens are outside 0 to %d", s.Prompt.Top, sampler.MaxTopLogprobs)
	case s.Sample != nil && s.Sample.Drafts > 0:
		return fmt.Errorf("prompt: %d drafts are no tokens of a prompt", s.Sample.Drafts)
	}
	for _, token := range s.Prompt.Next {
		if token < 0 || int(token) >= vocabulary {
			return fmt.Errorf("prompt: token %d is outside the vocabulary of %d", token, vocabulary)
		}
	}
	return nil
}
