package routing

import (
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// defaultStep stands in where no worker of a role has measured anything.
var defaultStep = latency.Model{BaseMs: 20, PerTokenMs: 0.5, PerContextTokenMs: 0.0002}

// mostStepMs bounds what a worker may say of its steps: products of it with any
// number of tokens are finite.
const mostStepMs = 1e9

// measured is how long a step takes on this worker, as it has measured.
func (w *worker) measured() (latency.Model, bool) { return w.step, w.step.Samples > 0 }

// measured is a worker's word for it. What no measurement can be, not a number included,
// counts as none: then all is 0.
func measured(m *controlv1.StepTimeModel) latency.Model {
	if m.GetSamples() == 0 {
		return latency.Model{}
	}
	for _, ms := range [...]float64{m.GetBaseMs(), m.GetPerTokenMs(), m.GetPerContextTokenMs(), m.GetPerSquareMs()} {
		if !(ms >= 0 && ms <= mostStepMs) {
			return latency.Model{}
		}
	}
	return latency.Model{BaseMs: m.GetBaseMs(), PerTokenMs: m.GetPerTokenMs(), PerContextTokenMs: m.GetPerContextTokenMs(), PerSquareMs: m.GetPerSquareMs(), Samples: m.GetSamples(), MostTokens: clampInt(m.GetMostTokens())}
}

// quickest is the quickest step of a role's workers of a version, as it was at a time.
type quickest struct {
	version Version
	at      time.Time
	step    latency.Model
}

// quickestFor is for how long the quickest step of very many workers stands.
const quickestFor = 100 * time.Millisecond

// quickestStep is how long a step lasts on the quickest worker of a role and version. Samples is 0
// where none has measured.
func (rt *Router) quickestStep(role controlv1.Role, v Version) latency.Model {
	workers := rt.ofRole(role)
	if len(workers) <= lookMost {
		return quickestOf(workers, role, v)
	}
	q := &rt.quickest[byRole(role)]
	if q.version != v || q.at.IsZero() || rt.now.Sub(q.at) > quickestFor {
		*q = quickest{version: v, at: rt.now, step: quickestOf(workers, role, v)}
	}
	return q.step
}

// byRole is where a role is among prefill and decode workers.
func byRole(role controlv1.Role) int {
	if role == controlv1.Role_ROLE_DECODE {
		return 1
	}
	return 0
}

func quickestOf(workers []*worker, role controlv1.Role, v Version) latency.Model {
	// A prefill step is a chunk, a decode step a token of each of some sequences.
	var work latency.StepWork
	if work.Add(0, 256, false); role == controlv1.Role_ROLE_DECODE {
		work = latency.Decoding(8, 8*512)
	}
	step := defaultStep
	for _, w := range workers {
		m, ok := w.measured()
		if ok && w.version == v && (step.Samples == 0 || m.Predict(work) < step.Predict(work)) {
			step = m
		}
	}
	return step
}

// steps is the steps in which a worker computes prompts.
type steps struct {
	model      latency.Model
	chunk      int     // tokens of one prompt in each, at most
	stepTokens int     // of all prompts in each, at most
	otherMs    float64 // what each takes beside its prompts
	// prompt is how many tokens the prompts of others are taken to have.
	prompt int
}

// tokenMs is what a token of a prompt takes, on average.
func (s steps) tokenMs() float64 { return s.model.PerTokenMs + s.model.PerSquareMs*float64(s.prompt) }

// steps are a worker's, beside those that decode there, where prompts have so many tokens.
func (w *worker) steps(m latency.Model, prompt, decoding, context int) steps {
	return w.stepsWithin(w.maxSequences, m, prompt, decoding, context)
}

// steps are the worker's, as worker.steps.
func (c *candidate) steps(m latency.Model, prompt, decoding, context int) steps {
	return c.worker.stepsWithin(c.places(), m, prompt, decoding, context)
}

// stepsWithin are the steps of a worker where so many sequences at most decode at a time.
func (w *worker) stepsWithin(places int, m latency.Model, prompt, decoding, context int) steps {
	if places > 0 && decoding > places { // the others wait for a place
		decoding, context = places, int(float64(context)*float64(places)/float64(decoding))
	}
	s := steps{model: m, chunk: max(w.chunk, 1), otherMs: m.BaseMs, prompt: prompt}
	if w.chunk <= 0 {
		s.chunk = math.MaxInt32
	}
	if decoding > 0 {
		s.otherMs += m.PerTokenMs*float64(decoding) + m.PerContextTokenMs*float64(context)
		if w.budget > 0 {
			s.chunk = min(s.chunk, w.budget)
		}
	}
	if s.stepTokens = s.chunk; s.chunk == w.chunk { // no time bounds it
		s.stepTokens = max(s.chunk, w.maxBatch)
	}
	if ms := s.tokenMs(); ms > 0 {
		enough := latency.PromptsPerBase
		if decoding == 0 {
			enough *= 2
		}
		s.stepTokens = min(s.stepTokens, int(min(float64(enough)*m.BaseMs/ms, math.MaxInt32))+max(w.blockTokens, 1))
	}
	return s
}

// paced are the steps beside sequences that want a token in each eachMs: prompts have what those leave,
// and one block in some of the steps in any case.
func (s steps) paced(eachMs float64, blockTokens int) steps {
	ms := s.tokenMs()
	if ms <= 0 {
		return s
	}
	spare := min(max(latency.PaceBurst*(latency.PaceShare*eachMs-s.otherMs)/ms, 0), math.MaxInt32)
	most := max(int(spare), blockTokens/(latency.PaceWithoutPrompts+1), 1)
	s.chunk, s.stepTokens = min(s.chunk, most), min(s.stepTokens, most)
	return s
}

// mostMs is how long a step takes with as much of prompts as it may have.
func (s steps) mostMs() float64 {
	if s.chunk == math.MaxInt32 {
		return math.Inf(1)
	}
	return s.otherMs + float64(s.chunk)*s.tokenMs()
}

// ms is how long so many tokens of one prompt take, after cached ones.
func (s steps) ms(tokens, cached int) float64 {
	return s.take(tokens, s.chunk, s.model.PromptMs(tokens, cached))
}

// queueMs is how long so many tokens of other prompts take.
func (s steps) queueMs(tokens int) float64 {
	return s.take(tokens, s.stepTokens, s.tokenMs()*float64(tokens))
}

// workMs is what so many tokens of a prompt take of the time where others share the steps.
func (s steps) workMs(tokens int) float64 {
	return float64(tokens) * (s.tokenMs() + s.otherMs/float64(s.stepTokens))
}

func (s steps) take(tokens, chunk int, addedMs float64) float64 {
	if tokens <= 0 {
		return 0
	}
	return math.Ceil(float64(tokens)/float64(chunk))*s.otherMs + addedMs
}
