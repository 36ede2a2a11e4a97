package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Params are a source's parameters from the run and the server.
type Params struct {
	// Rate is requests per second in open loop; for a ramp, at its end. A conversation
	// counts once, since its later turns follow its answers. Traces with times do not
	// need it.
	Rate float64
	// Concurrency above 0 selects a closed loop: every Due is 0, and only a trace ends
	// it.
	Concurrency int
	// Duration of an open loop, after which nothing is due. 0: unlimited.
	Duration time.Duration
	// Step numbers the runs of one command, such as the rates of a sweep. Each has its
	// own prompts, so that none are in a prefix cache; arrivals and lengths use the same
	// random numbers in all. Recorded texts are as recorded in step 0; in each later one the
	// conversations begin with a number of the step's own.
	Step int
	// Repeat numbers the runs at one rate from 0. Each has its own arrivals, lengths,
	// classes and turns; runs at different rates with the same Repeat share them.
	Repeat int
	// VocabularySize and ContextTokens of the model; 0 if unknown.
	VocabularySize, ContextTokens int
	// Text: the server accepts only text.
	Text bool
}

func (p Params) validate(s *Spec) error {
	switch {
	case p.Concurrency < 0 || p.Duration < 0 || p.Step < 0 || p.Repeat < 0 || p.VocabularySize < 0 || p.ContextTokens < 0:
		return fmt.Errorf("workload: a negative parameter: %+v", p)
	case p.Concurrency > 0 || s.OwnTimes():
		return nil
	case !(p.Rate > 0) || math.IsInf(p.Rate, 0):
		return fmt.Errorf("the rate is %g requests a second: give a --rate above 0, or --concurrency for a closed loop", p.Rate)
	case s.Arrival == Ramp && p.Duration == 0:
		return fmt.Errorf("--arrival ramp needs a duration: the rate rises over the whole of it")
	}
	return nil
}

// Warning is a change or omission by a Source: N of Of, or N if Of is 0, and Text says
// what. Warnings of equal Text add up.
type Warning struct {
	Count, Of int64
	Text      string
}

// String formats the warning as a sentence.
func (w Warning) String() string {
	if w.Of > 0 {
		return fmt.Sprintf("%d of %d %s", w.Count, w.Of, w.Text)
	}
	return fmt.Sprintf("%d %s", w.Count, w.Text)
}

// Warner is a Source that reports its changes and omissions so far. It is safe for
// concurrent use. Sources of Spec.New are Warners.
type Warner interface {
	Warnings() []Warning
}

// New starts a run's source. The Spec must be valid and not change while sources are in
// use. A replayed trace is an open file: if the source is an io.Closer, close it after
// the last request.
func (s *Spec) New(p Params) (Source, error) {
	if s.prose == nil {
		return nil, errors.New("workload: Validate comes before New")
	}
	if err := p.validate(s); err != nil {
		return nil, err
	}
	m, err := newMaker(s, p)
	if err != nil {
		return nil, err
	}
	a := &arrivals{
		random: random(repeated(s.Seed, p.Repeat), forArrivals, 0, 0), process: s.Arrival,
		rate: p.Rate, from: s.RampFrom, shape: s.Burstiness,
		until: p.Duration.Seconds(), closed: p.Concurrency > 0, surges: s.surges,
	}
	if s.replays() {
		return newReplay(m, a, p)
	}
	return &synthetic{
		maker: m, arrivals: a,
		lengths: random(m.chance, forLengths, 0, 0), kinds: random(m.chance, forClasses, 0, 0), turns: random(m.chance, forTurns, 0, 0),
	}, nil
}

// context is the maximum of prompt plus output tokens. Token counts of text are
// estimates, and servers refuse what does not fit, so for text an eighth is kept free.
func (s *Spec) context(p Params) int {
	context := smaller(s.ContextTokens, p.ContextTokens)
	if s.text(p) {
		context -= context / 8
	}
	return cmp.Or(context, maxCount)
}

// vocabulary is the number of ids to use in prompts, 0 if unknown.
func (s *Spec) vocabulary(p Params) int {
	return smaller(s.VocabularySize, p.VocabularySize)
}

// smaller returns the smaller of two sizes, ignoring 0 for unknown.
func smaller(a, b int) int {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// text reports whether prompts are text.
func (s *Spec) text(p Params) bool {
	switch {
	case p.Text || s.PromptKind == KindText || s.conversations() || s.TextFile != "":
		return true
	case s.PromptKind == KindIDs:
		return false
	default:
		return s.vocabulary(p) == 0
	}
}

// fit shortens a prompt and an output to fit size tokens, at least 2. Whichever exceeds
// half of it is cut, or both.
func fit(prompt, output, size int) (int, int, bool) {
	half := size / 2
	switch {
	case prompt <= size-output:
		return prompt, output, false
	case prompt <= half:
		return prompt, size - prompt, true
	case output <= half:
		return size - output, output, true
	default:
		return size - half, half, true
	}
}
