package worker

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Speculation is what operators choose of speculative decoding.
type Speculation struct {
	// Speculate is how next tokens are drafted, to be verified several in a step:
	// SpeculateNgram, SpeculateDraft, or SpeculateOff, which empty stands for.
	// SpeculateTokens is the most drafts of a sequence in a step.
	Speculate       string
	SpeculateTokens int
}

// The choices of Speculation.Speculate.
const (
	SpeculateOff   = "off"
	SpeculateNgram = "ngram"
	SpeculateDraft = "draft"
)

// defaultSpeculateTokens is how many tokens are drafted at most, unless somebody says
// otherwise, and maxSpeculateTokens the most that may be said.
const (
	defaultSpeculateTokens = 8
	maxSpeculateTokens     = 15
)

// RegisterFlags adds the flags, with defaults that work.
func (s *Speculation) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Speculate, "speculate", SpeculateOff, "speculative decoding on decode workers: off; ngram, which drafts what an output constraint forces and what stood behind the last tokens before in the same text; or draft, which has a smaller model draft them (--draft-model). The tokens are the same either way")
	fs.IntVar(&s.SpeculateTokens, "speculate-tokens", defaultSpeculateTokens, "maximum tokens of one sequence that a decode worker drafts for a step with --speculate; it drafts fewer where that costs more than it gives")
}

// Validate checks what RegisterFlags registers.
func (s Speculation) Validate() error {
	switch s.Speculate {
	case "", SpeculateOff:
		return nil
	case SpeculateNgram, SpeculateDraft:
		if s.SpeculateTokens < 1 || s.SpeculateTokens > maxSpeculateTokens {
			return fmt.Errorf("speculate-tokens: %d is outside 1 to %d", s.SpeculateTokens, maxSpeculateTokens)
		}
		return nil
	}
	return fmt.Errorf("speculate: %q is neither off, ngram nor draft", s.Speculate)
}

// MaxDrafts is how many tokens are drafted at most with an engine that verifies so many, and that
// has a draft model beside it or not.
func (s Speculation) MaxDrafts(verified int, drafts bool) (int, error) {
	switch {
	case s.Speculate == "" || s.Speculate == SpeculateOff:
		return 0, nil
	case verified == 0:
		return 0, errors.New("speculate: this engine cannot verify draft tokens, or its profile does not say how long that takes: use --speculate off, or measure the profile again with 'tandem profile'")
	}
	if s.Speculate == SpeculateDraft && !drafts {
		return 0, errors.New("speculate: there is no draft model beside this engine: use --speculate ngram or off")
	}
	return min(s.SpeculateTokens, verified), nil
}
