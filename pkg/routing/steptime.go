package routing

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// defaultStep stands in where no worker of a role has measured anything.
var defaultStep = latency.Model{BaseMs: 20, PerTokenMs: 0.5, PerContextTokenMs: 0.0002}

// mostStepMs bounds what a worker may say of its steps: products of it with any
// number of tokens are finite.
const mostStepMs = 1e9

// measured is how long a step takes on this worker, as it has measured.
func (w *worker) measured() (latency.Model, bool) { return w.step, w.known }

// measured is a worker's word for it. What no measurement can be, not a number included,
// counts as none.
func measured(m *controlv1.StepTimeModel) (latency.Model, bool) {
	for _, ms := range [...]float64{m.GetBaseMs(), m.GetPerTokenMs(), m.GetPerContextTokenMs()} {
		if !(ms >= 0 && ms <= mostStepMs) {
			return latency.Model{}, false
		}
	}
	if m.GetSamples() == 0 {
		return latency.Model{}, false
	}
	return latency.Model{BaseMs: m.GetBaseMs(), PerTokenMs: m.GetPerTokenMs(), PerContextTokenMs: m.GetPerContextTokenMs(), Samples: m.GetSamples()}, true
}

// unmeasuredStep is how long a step is taken to last on a worker of a role and version
// that has measured nothing: as long as on the quickest that has, or it would never
// be given anything to measure. Samples is 0.
func (rt *Router) unmeasuredStep(role controlv1.Role, v Version) latency.Model {
	// A prefill step is a chunk, a decode step a token of each of some sequences.
	tokens, context := 256, 256
	if role == controlv1.Role_ROLE_DECODE {
		tokens, context = 8, 8*512
	}
	step, known := defaultStep, false
	for _, w := range rt.ofRole(role) {
		m, ok := w.measured()
		if ok && w.version() == v && (!known || m.Predict(tokens, context) < step.Predict(tokens, context)) {
			step, known = m, true
		}
	}
	step.Samples = 0
	return step
}

// compute is the time to compute tokens after cached ones, in chunks,
// milliseconds.
func (w *worker) compute(m latency.Model, tokens, cached int) float64 {
	if tokens <= 0 {
		return 0
	}
	chunk := w.maxBatch
	if chunk <= 0 {
		chunk = tokens
	}
	chunks := float64((tokens + chunk - 1) / chunk)
	return chunks*m.BaseMs + float64(tokens)*m.PerTokenMs +
		chunks*m.PerContextTokenMs*(float64(cached)+float64(tokens)/2)
}
