package speculation

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// StepTimes is what steps without prompts take, by the tokens that they compute and by the
// contexts of their sequences. Few tokens more can cost much, or nothing: what a device computes
// at a time has a size. So each number of tokens has a time of its own. It is that of one of the
// shorter steps, a quarter of them being shorter: what disturbs a step makes it longer, and says
// nothing of its tokens. The zero value is ready.
type StepTimes struct {
	model   latency.StepTime // for what contexts cost
	by      [mostTokens + 1]stepsOf
	largest int // number of tokens of a step so far
	steps   int // so far
}

// stepsOf is what steps of a number of tokens take, with so many tokens of context.
type stepsOf struct {
	ms, contexts float64
	steps        int // that it is of
	seen         int // which of all steps the last of them was
}

const (
	// mostTokens is up to how many tokens numbers are told apart.
	mostTokens = 256
	// firstSteps are those of which the shortest counts: one step may have been disturbed. Until there
	// were so many, what they took is believed less and less, and not at all this many steps later.
	firstSteps, believed = 4, 64
	// By these shares a time goes up after a longer step, and down after a shorter one.
	stepUp, stepDown = 0.02, 0.06
	// newShare is how much the last step's contexts count.
	newShare = 1.0 / 8
	// cheapTokens is of how many tokens a device is taken to compute as long as a step takes in any
	// case, where no step tells.
	cheapTokens = 128
)

// Observe takes a step of so many tokens, after which its sequences had so many tokens of
// context together.
func (s *StepTimes) Observe(tokens, contexts int, took time.Duration) {
	if tokens < 1 || contexts < 0 || took < 0 {
		return
	}
	s.model.Observe(latency.Decoding(tokens, contexts), took)
	s.largest = max(s.largest, tokens)
	s.steps++
	if tokens > mostTokens {
		return
	}
	k, ms := &s.by[tokens], took.Seconds()*1e3
	if k.steps == 0 {
		k.ms, k.contexts = ms, float64(contexts)
	}
	expected := k.at(float64(contexts), s.model.Model())
	switch {
	case k.steps < firstSteps:
		k.ms += min(ms-expected, 0)
	case ms < expected:
		k.ms += max(ms-expected, -stepDown*k.ms)
	default:
		k.ms += min(ms-expected, stepUp*k.ms)
	}
	k.ms = max(k.ms, 0)
	k.steps++
	k.seen = s.steps
	move := (float64(contexts) - k.contexts) * newShare
	k.ms += move * s.model.Model().PerContextTokenMs
	k.contexts += move
}

// at is what such a step takes with so many tokens of context.
func (k *stepsOf) at(contexts float64, m latency.Model) float64 {
	return max(k.ms+m.PerContextTokenMs*(contexts-k.contexts), 0)
}

// Ms is what a step would take, in milliseconds; 0 if nothing is known. For a number of tokens
// that is not known, the next larger and smaller ones that are count. None above mostTokens is free.
func (s *StepTimes) Ms(tokens, contexts int) float64 {
	tokens = max(tokens, 1)
	below, above := s.below(min(tokens, mostTokens)), tokens
	for above <= mostTokens && s.by[above].steps == 0 {
		above++
	}
	m, c := s.model.Model(), float64(contexts)
	switch {
	case below == 0 && above > mostTokens:
		return 0
	case below == 0:
		return s.by[above].at(c, m)
	case above == below && s.by[below].steps < firstSteps:
		left := 1 - float64(s.steps-s.by[below].seen)/believed
		return max(left*s.by[below].at(c, m), s.by[s.below(below-1)].at(c, m))
	case above == below:
		return s.by[below].at(c, m)
	case above > mostTokens:
		ms := s.by[below].at(c, m)
		each := ms / cheapTokens
		if less := s.below(below - 1); less > 0 {
			each = max(each, (ms-s.by[less].at(c, m))/float64(below-less))
		}
		return ms + each*float64(tokens-below)
	}
	low, high := s.by[below].at(c, m), s.by[above].at(c, m)
	return low + (high-low)*float64(tokens-below)/float64(above-below)
}

// Reach is how many drafts a step of so many tokens without any can have, by what is known of
// larger steps: some more than ever before. What many more would cost is hardly known, and a step that
// finds it out can cost as much as several.
func (s *StepTimes) Reach(tokens int) int { return 2*max(s.largest-tokens, 0) + 1 }

// Known says whether there were enough steps of so many tokens. What drafts cost is measured against
// that.
func (s *StepTimes) Known(tokens int) bool {
	return tokens > mostTokens || tokens > 0 && s.by[tokens].steps >= firstSteps
}

// below is the next smaller number of tokens that there were steps of, or the same; 0: there is none.
func (s *StepTimes) below(tokens int) int {
	for tokens > 0 && s.by[tokens].steps == 0 {
		tokens--
	}
	return tokens
}
