package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Params are what a source has to know of the run and the server.
type Params struct {
	// Rate is requests a second in open loop, of a ramp that at its end. A
	// conversation counts once: its later turns follow its answers. Traces with times
	// do not need it.
	Rate float64
	// Concurrency, if above 0, asks for a closed loop: every Due is 0, and there is
	// no end but that of a trace.
	Concurrency int
	// Duration ends open loop: nothing is due after it. 0: no end.
	Duration time.Duration
	// Step counts the runs of one command, such as the rates of a sweep. Each step
	// has prompts of its own, so that none finds those of the last in a prefix cache;
	// arrivals and lengths come from the same numbers in all.
	Step int
	// Repeat counts the runs at one rate from 0. Each has arrivals, lengths, classes
	// and turns of its own, so that a second run says more than the first; runs at
	// different rates with the same Repeat share them.
	Repeat int
	// VocabularySize and ContextTokens are the model's; 0 if the server does not say.
	VocabularySize, ContextTokens int
	// Text: the server takes text only.
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

// Warning is something that a Source had to change or leave out: how many of Of, or how
// many if Of is 0, and what of them. Those of equal Text add up.
type Warning struct {
	Count, Of int64
	Text      string
}

// String is the warning as a sentence.
func (w Warning) String() string {
	if w.Of > 0 {
		return fmt.Sprintf("%d of %d %s", w.Count, w.Of, w.Text)
	}
	return fmt.Sprintf("%d %s", w.Count, w.Text)
}

// Warner is a Source that can say what it had to change or leave out so far, in
// sentences. Safe for concurrent use. Those of Spec.New are Warners.
type Warner interface {
	Warnings() []Warning
}

// New begins a run. The Spec must be valid, and stay as it is while sources are in
// use. A replayed trace is a file that is open: if the source is an io.Closer,
// close it when no more is asked of it.
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
		until: p.Duration.Seconds(), closed: p.Concurrency > 0,
	}
	if s.replays() {
		return newReplay(m, a, p)
	}
	return &synthetic{
		maker: m, arrivals: a,
		lengths: random(m.chance, forLengths, 0, 0), kinds: random(m.chance, forClasses, 0, 0), turns: random(m.chance, forTurns, 0, 0),
	}, nil
}

// context is how many tokens a prompt and its answer may have together. How many a text has
// is an estimate, and servers refuse what does not fit: an eighth stays free for that.
func (s *Spec) context(p Params) int {
	context := smaller(s.ContextTokens, p.ContextTokens)
	if s.text(p) {
		context -= context / 8
	}
	return cmp.Or(context, maxCount)
}

// vocabulary is how many ids prompts are made of, 0 if nobody says.
func (s *Spec) vocabulary(p Params) int {
	return smaller(s.VocabularySize, p.VocabularySize)
}

// smaller is the smaller one of two sizes, of which 0 is not known.
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

// fit makes a prompt and an output fit into size tokens, at least 2. Whichever takes
// more than half of it gives way, both if both do.
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
