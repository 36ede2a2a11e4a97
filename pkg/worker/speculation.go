package worker

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Speculation is what operators choose of speculative decoding.
type Speculation struct {
	// Speculate is how next tokens are guessed at, to be verified several in a step:
	// SpeculateNgram, or SpeculateOff, which empty stands for. SpeculateTokens is the most guesses of a sequence in a
	// step.
	Speculate       string
	SpeculateTokens int
}

// The choices of Speculation.Speculate.
const (
	SpeculateOff   = "off"
	SpeculateNgram = "ngram"
)

// DefaultSpeculateTokens is how many tokens are guessed at most, unless somebody says
// otherwise, and maxSpeculateTokens the most that may be said.
const (
	DefaultSpeculateTokens = 8
	maxSpeculateTokens     = 15
)

// RegisterFlags adds the flags, with defaults that work.
func (s *Speculation) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Speculate, "speculate", SpeculateOff, "speculative decoding on decode workers: off, or ngram, which guesses the next tokens where the last ones stood before in the same text; the tokens are the same either way")
	fs.IntVar(&s.SpeculateTokens, "speculate-tokens", DefaultSpeculateTokens, "maximum tokens of one sequence that a decode worker guesses for a step with --speculate; it guesses fewer where that costs more than it gives")
}

// Validate checks what RegisterFlags registers.
func (s Speculation) Validate() error {
	switch s.Speculate {
	case "", SpeculateOff:
		return nil
	case SpeculateNgram:
		if s.SpeculateTokens < 1 || s.SpeculateTokens > maxSpeculateTokens {
			return fmt.Errorf("speculate-tokens: %d is outside 1 to %d", s.SpeculateTokens, maxSpeculateTokens)
		}
		return nil
	}
	return fmt.Errorf("speculate: %q is neither off nor ngram", s.Speculate)
}

// MaxDrafts is how many tokens are guessed at most with an engine that verifies so many.
func (s Speculation) MaxDrafts(verified int) (int, error) {
	switch {
	case s.Speculate != SpeculateNgram:
		return 0, nil
	case verified == 0:
		return 0, errors.New("speculate: this engine cannot verify guesses, or its profile does not say how long that takes: use --speculate off, or measure the profile again with 'tandem profile'")
	}
	return min(s.SpeculateTokens, verified), nil
}
