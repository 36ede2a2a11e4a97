package latency

import (
	"math"
	"time"
)

// Model predicts the time of a step: base + per token computed + per token of
// context attended to. All coefficients are milliseconds and not negative. The
// zero Model predicts 0.
type Model struct {
	BaseMs, PerTokenMs, PerContextTokenMs float64
	// Samples is the number of steps that the model was fitted to; 0: none yet.
	Samples uint64
	// MostTokens is how many tokens the largest step had of those that count: what far more would
	// take is a guess. 0: not known.
	MostTokens int
}

// Predict is the time of a step that computes tokens and whose sequences have,
// after it, context tokens in all.
func (m Model) Predict(tokens, context int) time.Duration {
	ms := m.BaseMs + m.PerTokenMs*float64(tokens) + m.PerContextTokenMs*float64(context)
	return time.Duration(ms * float64(time.Millisecond))
}

// StepTime fits a Model to the steps it is shown: least squares in which a step
// counts for less the longer ago it was. The zero value is ready. It is
// not safe for concurrent use.
type StepTime struct {
	samples uint64
	// Weighted sums over the steps of x·xᵀ and x·ms with x = (1, tokens, context).
	xx    matrix
	xy    vector
	most  float64 // tokens of the largest step, less the longer ago it was
	model Model   // the last fit
}

// maxForget is the weight of a step relative to the one after it: about the last
// 1000 count.
const maxForget = 0.999

// forget is that weight after the first n steps. It begins low, so that what the
// first steps of a cold engine cost is soon forgotten: after n steps the very
// first one weighs about (8/n)² of the last.
func forget(n uint64) float64 { return min(maxForget, 1-2/(float64(n)+8)) }

const (
	// trusted is the number of steps from which on the fit judges new ones.
	trusted = 16
	// outlier is how many times longer than expected a step may be. One that was
	// longer counts as if it had been this long: a process that was stopped for
	// seconds has learned nothing about its steps, but one that has become slow for
	// good gets there within a few.
	outlier = 10
)

// Observe takes the duration of one step that computed tokens and whose
// sequences had, after it, context tokens in all. What can not be is ignored: a
// step without tokens, negative numbers.
func (s *StepTime) Observe(tokens, context int, d time.Duration) {
	if tokens < 1 || context < 0 || d < 0 {
		return
	}
	old := forget(s.samples)
	s.samples++
	x := [3]float64{1, float64(tokens), float64(context)}
	s.most = max(old*s.most, x[1])
	ms := float64(d) / float64(time.Millisecond)
	if s.samples > trusted {
		if mean := s.xy[0] / s.xx[0][0]; ms > outlier*mean { // else no limit is below it
			model := s.Model()
			expected := model.BaseMs + model.PerTokenMs*x[1] + model.PerContextTokenMs*x[2]
			if limit := outlier * max(mean, expected); limit > 0 {
				ms = min(ms, limit)
			}
		}
	}
	for i := range x {
		for j := range x {
			s.xx[i][j] = old*s.xx[i][j] + x[i]*x[j]
		}
		s.xy[i] = old*s.xy[i] + x[i]*ms
	}
	if s.samples <= refit*refit || s.samples%refit == 0 {
		// Steps that all have the same tokens do not say what more of them would take. Then the time
		// of few tokens counts as mostly fixed, as that of a decode step is, and of many as theirs.
		tokens := math.Sqrt(s.xx[1][1] / s.xx[0][0])
		// Nor do steps of whole prompts alone, whose context is their tokens, say what context takes.
		c := nonNegativeLeastSquares(3, s.xx, s.xy, vector{tokens / balancedTokens, 1, contextDear})
		s.model = Model{BaseMs: c[0], PerTokenMs: c[1], PerContextTokenMs: c[2]}
	}
}

// balancedTokens is of how many tokens a device is taken to compute as long as it reads its weights,
// where steps do not tell.
const balancedTokens = 128

// contextDear is how many times as much a token is taken to take as one of context, where steps do not
// tell: all weights are multiplied for it, and for one of context two vectors of each layer.
const contextDear = 1000

// refit is after how many samples the best fit is looked for again, once there are enough that a
// few more change little.
const refit = 8

// Model is the best fit so far, but for the last few samples. It depends on the samples alone, and
// not on when it is asked for: who replays them gets the same.
func (s *StepTime) Model() Model {
	s.model.Samples, s.model.MostTokens = s.samples, int(s.most)
	return s.model
}

// Samples is the number of steps that it was shown.
func (s *StepTime) Samples() uint64 { return s.samples }
