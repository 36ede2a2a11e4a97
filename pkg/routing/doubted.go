package routing

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// What a worker has not measured, or measured in a bad moment, is taken from others: without work it would
// never learn better.

// unmeasured is the step time of a worker of the role that has measured nothing: that of the quickest
// that has, or it would never be given anything to measure. Samples is 0.
func (rt *Router) unmeasured(s *search, role controlv1.Role) latency.Model {
	step := &s.unmeasured[byRole(role)]
	if *step == nil {
		m := rt.quickestStep(role, s.version)
		m.Samples = 0
		*step = &m
	}
	return **step
}

// quicker is the step time of the quickest of a role's workers, or of the other role's that have done
// such work: all of a role may have had a bad moment, and there may be only one.
func (rt *Router) quicker(s *search, role controlv1.Role) latency.Model {
	step := &s.quicker[byRole(role)]
	if *step != nil {
		return **step
	}
	m := rt.unmeasured(s, role)
	*step = &m
	looked := 0
	for _, w := range rt.ofRole(partner(role)) {
		its, is := w.measured()
		if !is || s.foreign(w) {
			continue
		}
		if looked++; looked > lookMost {
			break
		}
		done := w.decodedLately(s.now)
		if role == controlv1.Role_ROLE_PREFILL {
			done = !extrapolates(its, s.request.Tokens)
		}
		if done && clearlySlower(role, m, its, s.request.Tokens) {
			m = its
		}
	}
	return m
}

// revisitAfter is how long a worker may be idle because of what it measured, before it is given a
// chance to measure anew: about as long as it has measured, so that a bad beginning does not count for
// long.
func revisitAfter(role controlv1.Role, m latency.Model) time.Duration {
	stepMs := m.BaseMs + m.PerTokenMs
	if role == controlv1.Role_ROLE_PREFILL {
		stepMs = m.BaseMs + m.PromptMs(m.MostTokens, 0)/2
	}
	return min(max(durationOf(float64(m.Samples)*stepMs), revisitLeast), revisitMost)
}

const (
	revisitLeast = 100 * time.Millisecond
	revisitMost  = 10 * time.Second
)

// clearlySlower reports whether a prompt of so many tokens, or on a decode worker a token after it,
// takes much longer by a than by b.
func clearlySlower(role controlv1.Role, a, b latency.Model, tokens int) bool {
	const much = 1.25
	if role == controlv1.Role_ROLE_DECODE {
		one := latency.Decoding(1, tokens)
		if float64(a.Predict(one)) > much*float64(b.Predict(one)) {
			return true
		}
		if extrapolates(a, tokens) || extrapolates(b, tokens) {
			return false
		}
	}
	return a.BaseMs+a.PromptMs(tokens, 0) > much*(b.BaseMs+b.PromptMs(tokens, 0))
}
