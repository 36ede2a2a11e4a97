package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// Validate checks the fields, detects the trace's format, and reads the files kept in
// memory.
func (s *Spec) Validate() error {
	if err := errors.Join(s.validateNumbers(), s.validateChoices()); err != nil {
		return err
	}
	if s.Trace != "" {
		file, err := s.openTrace(trace.Format(s.TraceFormat))
		if err != nil {
			return err
		}
		s.format = file.Format()
		file.Close()
	}
	if err := s.validateTrace(); err != nil {
		return err
	}
	if s.Think.IsSet() && !s.Turns.IsSet() && !s.conversations() {
		return errors.New("--think is the time between the turns of a conversation, but each has only one turn: add --turns, or leave it out")
	}
	for s.Seed == 0 {
		s.Seed = rand.Uint64()
	}
	var err error
	if s.TextFile != "" {
		s.prose, err = readProse(s.TextFile, s.CharsPerToken)
	} else {
		s.prose = newProse(s.CharsPerToken)
	}
	if err != nil {
		return err
	}
	if s.usesEmpirical() {
		s.empirical, err = s.readLengths()
	}
	return err
}

func (s *Spec) validateNumbers() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	within := func(value, least, most float64) bool { return value >= least && value <= most }
	check(within(s.Burstiness, 1e-3, 1e6), "--burstiness is %g: choose 0.001 to 1000000", s.Burstiness)
	check(within(s.RampFrom, 0, 1e9), "--ramp-from is %g: choose a rate from 0", s.RampFrom)
	check(within(s.CharsPerToken, 0.5, 32), "--chars-per-token is %g: choose 0.5 to 32", s.CharsPerToken)
	check(s.SharedPrefixTokens >= 0 && s.SharedPrefixTokens <= maxCount, "--shared-prefix-tokens is %d: choose 0 to %d", s.SharedPrefixTokens, maxCount)
	check(s.SharedPrefixes >= 1, "--shared-prefixes is %d: choose 1 or more", s.SharedPrefixes)
	check(within(s.Speed, 1e-6, 1e6), "--speed is %g: choose 0.000001 to 1000000; 2 is twice as fast as recorded", s.Speed)
	check(s.TraceLimit >= 0, "--trace-limit is %d: choose 0, for all, or more", s.TraceLimit)
	check(within(s.TraceScale, 1e-4, 1e3), "--trace-scale-lengths is %g: choose 0.0001 to 1000", s.TraceScale)
	check(within(float64(s.Temperature), 0, math.MaxFloat32), "--temperature is %g: choose 0 or more", s.Temperature)
	check(s.VocabularySize == 0 || s.VocabularySize >= minAlphabet, "--vocabulary-size is %d: choose %d or more", s.VocabularySize, minAlphabet)
	check(s.ContextTokens == 0 || s.ContextTokens >= 2, "--context-tokens is %d: choose 2 or more", s.ContextTokens)
	return errors.Join(problems...)
}

func (s *Spec) validateChoices() error {
	formats := []string{string(trace.Auto), string(trace.Azure), string(trace.Mooncake), string(trace.ShareGPT)}
	switch {
	case !slices.Contains([]string{Poisson, Gamma, Constant, Ramp}, s.Arrival):
		return fmt.Errorf("--arrival %q: choose poisson, gamma, constant or ramp", s.Arrival)
	case s.Burstiness != 1 && s.Arrival != Gamma:
		return fmt.Errorf("--burstiness %g is for --arrival gamma: add that", s.Burstiness)
	case s.RampFrom != 0 && s.Arrival != Ramp:
		return fmt.Errorf("--ramp-from %g is for --arrival ramp: add that", s.RampFrom)
	case s.Arrival == Ramp && len(s.surges) > 0:
		return errors.New("--surge does not go with --arrival ramp: leave out one of them")
	case !slices.Contains([]string{"", KindIDs, KindText}, s.PromptKind):
		return fmt.Errorf("--prompt-kind %q: choose ids or text", s.PromptKind)
	case s.TextFile != "" && s.PromptKind == KindIDs:
		return errors.New("--text-file does not go with --prompt-kind ids: leave out one of them")
	case !slices.Contains(formats, s.TraceFormat):
		return fmt.Errorf("--trace-format %q: choose auto, azure, mooncake or sharegpt", s.TraceFormat)
	case s.SharedPrefixes > 1 && s.SharedPrefixTokens == 0:
		return fmt.Errorf("--shared-prefixes %d needs --shared-prefix-tokens, the length of each", s.SharedPrefixes)
	}
	return nil
}

// validateTrace checks the fields that go with a trace of known format.
func (s *Spec) validateTrace() error {
	if s.Trace == "" {
		switch {
		case s.usesEmpirical():
			return errors.New("empirical lengths come from a trace: add --trace FILE")
		case s.Speed != 1 || s.TraceLimit != 0 || s.TraceScale != 1 || s.TraceFormat != string(trace.Auto):
			return errors.New("--speed, --trace-limit, --trace-scale-lengths and --trace-format are for a trace: add --trace FILE")
		}
		return nil
	}
	if !s.replays() {
		if s.Speed != 1 {
			return errors.New("--speed is for a replayed trace: with empirical lengths, requests come at the rate")
		}
		return nil
	}
	given := s.PromptTokens.IsSet() || s.OutputTokens.IsSet()
	for _, class := range s.classes {
		given = given || class.prompt.IsSet() || class.output.IsSet()
	}
	switch {
	case given:
		return errors.New("a replayed trace has its own lengths: leave out --prompt-tokens and --output-tokens, also in classes, or make one of them empirical to draw lengths from the trace")
	case s.SharedPrefixTokens > 0:
		return errors.New("--shared-prefix-tokens does not go with a replayed trace: its prompts stay as recorded")
	case s.format.Timed() && (s.Arrival != Poisson || len(s.surges) > 0 || s.Turns.IsSet() || s.Think.IsSet()):
		return fmt.Errorf("--arrival, --surge, --turns and --think do not go with a replayed %s trace: its requests keep their recorded times and have one turn each", s.format)
	case s.format == trace.ShareGPT && s.Speed != 1:
		return errors.New("--speed does not go with a sharegpt trace: it has no times; give the rate")
	case s.format == trace.ShareGPT && s.PromptKind == KindIDs:
		return errors.New("--prompt-kind ids does not go with a sharegpt trace, which is text: leave it out")
	case s.format == trace.ShareGPT && s.TextFile != "":
		return errors.New("--text-file does not go with a sharegpt trace, which has text: leave it out")
	case s.format == trace.Mooncake && s.TextFile != "":
		return errors.New("--text-file does not go with a mooncake trace: its prompts are made from the trace's block ids, so that equal blocks are equal text; leave it out")
	case s.format == trace.Mooncake && s.blockTokens() < minBlock:
		return fmt.Errorf("--trace-scale-lengths %g makes blocks of %d tokens, too few to tell them apart: choose %g or more", s.TraceScale, s.blockTokens(), float64(minBlock)/trace.BlockTokens)
	}
	return nil
}

// minBlock is the number of tokens that make a block practically unique.
const minBlock = 16
