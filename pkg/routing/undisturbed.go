package routing

import (
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// One sequence that decodes makes every step of its worker last as long as a step of decoding takes. A long
// prompt whose first token is wanted soon may then be late on every worker that decodes, however little that
// has to do. Where some prompts are in time only where nobody decodes, uses of the pools that have prefill workers
// decode are worth less (pooluse.go).

// inTime is how many of the requests that come can have their first token in time.
type inTime struct {
	undisturbed float64 // where nobody decodes
	beside      float64 // beside a sequence that decodes
	requests    uint64
	// prompts are the steps of the quickest prefill worker where nobody decodes, and mixed those beside one sequence, as
	// they were at a time.
	prompts, mixed steps
	blockTokens    int
	known          bool
	at             time.Time
}

const (
	// inTimeWeight is of how many requests the last one is one in the shares.
	inTimeWeight = 64
	// leaveToPrompts is the share of requests that have to be in time only where nobody decodes for that to
	// count, and keepToPrompts that at which it no longer does.
	leaveToPrompts, keepToPrompts = 0.01, 0.005
)

// disturbed reports whether so many requests for a model are in time only where nobody decodes that prefill workers
// had better be left to prompts.
func (rt *Router) disturbed(model string) bool {
	t := &rt.traffic[model].inTime
	least := leaveToPrompts
	if d := rt.demandFor(model); d != nil && d.use == allDisaggregated {
		least = keepToPrompts
	}
	return t.undisturbed-t.beside > least
}

// observe takes in a request that comes, of whose prompt workers lack so many tokens.
func (t *inTime) observe(e *entry, uncached int) {
	undisturbed, beside := 1., 1.
	if limitMs := milliseconds(e.request.TTFT); limitMs > 0 && !e.defaultObjective {
		cached := e.request.Tokens - uncached
		if t.prompts.ms(uncached, cached) > limitMs {
			undisturbed = 0
		}
		mixed := t.mixed
		if e.tpot > 0 {
			mixed = mixed.paced(milliseconds(e.tpot), t.blockTokens)
		}
		if mixed.otherMs/2+mixed.ms(uncached, cached) > limitMs { // what is left of a step comes first
			beside = 0
		}
	}
	t.requests++
	mean(&t.undisturbed, undisturbed, t.requests, inTimeWeight)
	mean(&t.beside, beside, t.requests, inTimeWeight)
}

// observeInTime takes in a request that comes, of whose prompt workers lack so many tokens.
func (rt *Router) observeInTime(e *entry, uncached int) {
	r := &e.request
	if t := rt.inTime(r.Model); t != nil && t.known && rt.mode(r) == inferencev1.Mode_MODE_AUTO {
		t.observe(e, uncached)
	}
}

// inTime is that of the requests for a model; nil: what steps take is not known.
func (rt *Router) inTime(model string) *inTime {
	traffic := rt.traffic[model]
	if traffic == nil {
		return nil
	}
	t := &traffic.inTime
	if !t.at.IsZero() && rt.now.Sub(t.at) < reviewEvery {
		return t
	}
	t.known, t.at = false, rt.now
	served, prompt := rt.model(model), max(rt.promptTokens(model), 1)
	var quickest *worker
	leastMs, budget := math.Inf(1), 0 // budget is the most that a prompt gets of a step
	for _, role := range [...]controlv1.Role{controlv1.Role_ROLE_PREFILL, controlv1.Role_ROLE_DECODE} {
		for _, w := range rt.ofRole(role) {
			if w.step.Samples == 0 || !rt.takes(w, served) || role == controlv1.Role_ROLE_PREFILL && !w.takesAggregated {
				continue
			}
			if ms := w.steps(w.step, prompt, 0, 0).ms(prompt, 0); role == controlv1.Role_ROLE_PREFILL && ms < leastMs {
				quickest, leastMs = w, ms
			}
			budget = max(budget, w.budget)
		}
	}
	if quickest == nil {
		return t
	}
	t.prompts = quickest.steps(quickest.step, prompt, 0, 0)
	beside := *quickest
	beside.budget = budget
	t.mixed = beside.steps(quickest.step, prompt, 1, prompt)
	t.blockTokens, t.known = quickest.blockTokens, true
	return t
}

// undisturbedMs is what a request's prompt takes on a candidate, or on a prefill worker where nobody decodes if
// that is quicker.
func (rt *Router) undisturbedMs(c *candidate, r *Request) float64 {
	if t := rt.inTime(r.Model); t != nil && t.known && rt.mode(r) != inferencev1.Mode_MODE_AGGREGATED {
		return min(c.prefillMs, t.prompts.ms(c.computed(), r.Tokens-c.computed()))
	}
	return c.prefillMs
}
