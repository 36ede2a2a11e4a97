package speculation

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// StepTimes is what steps without prompts take, by the tokens that they compute and by the
// contexts of their sequences. Few tokens more can cost much, or nothing: what a device computes
// at a time has a size. So beside a model of both it knows, for each number of tokens, how far from
// the model steps were. The zero value is ready.
type StepTimes struct {
	model latency.StepTime
	by    [mostTokens + 1]struct {
		ratio float64 // mean of the times to those of the model
		steps float64 // that it is of, at most rememberSteps
	}
}

const (
	// mostTokens is up to how many tokens numbers are told apart.
	mostTokens = 256
	// rememberSteps is of how many steps a ratio is the mean, about.
	rememberSteps = 64
	// modelSteps is how many steps the model counts for beside them: few may have been disturbed.
	modelSteps = 2
	// mostRatio bounds what one step can say: it may have been interrupted.
	mostRatio = 2
)

// Observe takes a step of so many tokens, after which its sequences had so many tokens of
// context together.
func (s *StepTimes) Observe(tokens, contexts int, took time.Duration) {
	s.model.Observe(tokens, contexts, took)
	expected := s.modelMs(tokens, contexts)
	if tokens < 1 || tokens > mostTokens || expected <= 0 {
		return
	}
	ratio := min(took.Seconds()*1e3/expected, mostRatio)
	known := &s.by[tokens]
	known.steps = min(known.steps+1, rememberSteps)
	known.ratio += (ratio - known.ratio) / known.steps
}

// ratio is by how much a number of tokens of which there were steps takes longer than the model
// says.
func (s *StepTimes) ratio(tokens int) float64 {
	known := s.by[tokens]
	return (known.ratio*known.steps + modelSteps) / (known.steps + modelSteps)
}

func (s *StepTimes) modelMs(tokens, contexts int) float64 {
	m := s.model.Model()
	return m.BaseMs + m.PerTokenMs*float64(tokens) + m.PerContextTokenMs*float64(contexts)
}

// Ms is what a step would take, in milliseconds; 0 if nothing is known. For a number of tokens
// that no step had, the next larger and smaller ones count.
func (s *StepTimes) Ms(tokens, contexts int) float64 {
	ms := s.modelMs(tokens, contexts)
	below, above := min(max(tokens, 1), mostTokens), min(max(tokens, 1), mostTokens)
	for below > 0 && s.by[below].steps == 0 {
		below--
	}
	for above <= mostTokens && s.by[above].steps == 0 {
		above++
	}
	switch {
	case below == 0 && above > mostTokens:
		return ms
	case below == 0:
		return ms * s.ratio(above)
	case above > mostTokens || above == below:
		return ms * s.ratio(below)
	}
	share := float64(tokens-below) / float64(above-below)
	return ms * (s.ratio(below) + share*(s.ratio(above)-s.ratio(below)))
}
