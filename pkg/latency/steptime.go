package latency

import (
	"math"
	"time"
)

// Model predicts the time of a step:
//
//	base + per token·T + per context token·Σcontext + per square·Σ(end²−start²)
//
// T are all tokens that it computes. A token of context costs a sequence that decodes the reading of
// its KV. The positions [start, end) of a prompt's tokens cost products of each with all before it,
// which is much less for each pair. All coefficients are milliseconds and not negative. The zero
// Model predicts 0.
type Model struct {
	BaseMs, PerTokenMs, PerContextTokenMs, PerSquareMs float64
	// Samples is the number of steps that the model was fitted to; 0: none yet.
	Samples uint64
	// MostTokens is how many tokens the largest step had of those that count: what far more would
	// take is a guess. 0: not known.
	MostTokens int
}

// Predict is the time of a step that computes so much.
func (m Model) Predict(w StepWork) time.Duration {
	return milliseconds(m.ms(inputs(w)))
}

// PromptMs is what tokens of a prompt add to the steps that compute them, in however many of those,
// where so many of its tokens come before.
func (m Model) PromptMs(tokens, before int) float64 {
	n, from := float64(tokens), float64(before)
	return m.PerTokenMs*n + m.PerSquareMs*n*(n+2*from)
}

// Decoding is a step that computes tokens of sequences that decode and have, after it, so many
// tokens of context in all.
func Decoding(tokens, context int) StepWork {
	return StepWork{Decode: Work{Tokens: tokens, Context: float64(context)}}
}

// The inputs of a model, in the order of its coefficients: 1, tokens, context, squares.
const terms = 4

func inputs(w StepWork) [terms]float64 {
	return [...]float64{1, float64(w.Prefill.Tokens + w.Decode.Tokens), w.Decode.Context, w.Prefill.Squares}
}

func (m Model) ms(x [terms]float64) float64 {
	return m.BaseMs*x[0] + m.PerTokenMs*x[1] + m.PerContextTokenMs*x[2] + m.PerSquareMs*x[3]
}

// StepTime fits a Model to the steps it is shown: least squares of the relative
// errors, in which a step counts for less the longer ago it was. Steps of prompts take
// a hundred times as long as those of a few sequences that decode, and would else
// drown them. The zero value is ready. It is not safe for concurrent use.
type StepTime struct {
	samples uint64
	// Weighted sums over the steps of x·xᵀ and x·ms, with x the inputs of a step.
	xx matrix
	xy vector
	// The same of 1 and ms, where no step weighs more than another but for its age.
	count, sumMs float64
	most         float64 // tokens of the largest step, less the longer ago it was
	model        Model   // the last fit
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

// Observe takes the duration of one step. What can not be is ignored: a step
// without tokens, negative numbers.
func (s *StepTime) Observe(w StepWork, d time.Duration) {
	x := inputs(w)
	if x[1] < 1 || x[2] < 0 || x[3] < 0 || d < 0 {
		return
	}
	old := forget(s.samples)
	s.samples++
	s.most = max(old*s.most, x[1])
	ms := float64(d) / float64(time.Millisecond)
	weight := 1.
	if s.samples > trusted {
		mean, expected := s.sumMs/s.count, s.model.ms(x)
		if limit := outlier * max(mean, expected); limit > 0 {
			ms = min(ms, limit)
		}
		relative := mean / max(expected, ms/outlier) // one that takes far too long weighs no more than it would
		weight = min(max(relative*relative, 1/mostWeight), mostWeight)
		if math.IsNaN(weight) { // 0/0
			weight = 1
		}
	}
	before := s.sumMs / s.count
	s.count, s.sumMs = old*s.count+1, old*s.sumMs+ms
	// Weights are relative to the mean: where that falls, those before were too large.
	if fall := s.sumMs / s.count / before; s.samples > trusted && fall < 1 {
		old *= fall * fall
	}
	for i := range x {
		for j := range x {
			s.xx[i][j] = old*s.xx[i][j] + weight*x[i]*x[j]
		}
		s.xy[i] = old*s.xy[i] + weight*x[i]*ms
	}
	if s.samples <= refit*refit || s.samples%refit == 0 {
		// Steps that all have the same tokens do not say what more of them would take. Then the time
		// of few tokens counts as mostly fixed, as that of a decode step is, and of many as theirs.
		tokens := math.Sqrt(s.xx[1][1] / s.xx[0][0])
		// Nor do steps of equal prompts say what positions take.
		c := nonNegativeLeastSquares(terms, s.xx, s.xy, vector{tokens / balancedTokens, 1, contextDear, contextDear})
		s.model = Model{BaseMs: c[0], PerTokenMs: c[1], PerContextTokenMs: c[2], PerSquareMs: c[3]}
	}
}

// mostWeight bounds how much more, or less, a step may weigh than one that takes as long as the mean.
const mostWeight = 1e6

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
