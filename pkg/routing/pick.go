package routing

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// pick has the policy choose, and draws one of those that are equal to it.
func (rt *Router) pick(options []*candidate) *candidate {
	near := rt.policy.near(rt, options)
	return near[rt.random.IntN(len(near))]
}

// pair finds prefill workers that can send to decode. If there are none because KV does
// not get there, or disaggregation is forced, it looks for another decode worker, however
// costly, that one can send to. Without such it returns decode.
func (rt *Router) pair(s *search, decodes *candidates, decode *candidate) (*candidate, *candidates) {
	forced := rt.mode(s.request) == inferencev1.Mode_MODE_DISAGGREGATED
	prefills := rt.look(s, controlv1.Role_ROLE_PREFILL, decode.worker)
	if prefills.fitness.usable() || !forced && prefills.broken == "" {
		return decode, prefills
	}
	// Each prefill worker is checked once, and of each pair only the path: pairs are many.
	senders := make([]finding, 0, len(prefills.all))
	model := rt.model(s.request.Model)
	for _, w := range rt.ofRole(controlv1.Role_ROLE_PREFILL) {
		f := rt.find(s.now, w)
		f.fitness, f.reason = rt.check(s, controlv1.Role_ROLE_PREFILL, model, &f, nil)
		senders = append(senders, f)
	}
	best, to := prefills.fitness, (*worker)(nil)
	for _, options := range [...][]*candidate{decodes.fittest(), decodes.between(decodes.fitness+1, reportsFull)} {
		var reached []*candidate
		for _, c := range options {
			f := rt.reach(s, senders, c.worker)
			if f.usable() {
				reached = append(reached, c)
			} else if f < best {
				best, to = f, c.worker
			}
		}
		if len(reached) > 0 {
			other := rt.pick(reached)
			return other, rt.look(s, controlv1.Role_ROLE_PREFILL, other.worker)
		}
	}
	if to != nil {
		prefills = rt.look(s, controlv1.Role_ROLE_PREFILL, to)
	}
	if forced && prefills.fitness == unreachable && len(decodes.between(later, later)) > 0 {
		prefills.fitness = later // one that is full at the moment may be reached
	}
	return decode, prefills
}

// reach is how fit the fittest of the senders is to send to a decode worker.
func (rt *Router) reach(s *search, senders []finding, to *worker) fitness {
	best := excluded
	for i := range senders {
		f, w := senders[i].fitness, senders[i].worker
		if f <= later {
			if w.layoutDigest != to.layoutDigest {
				continue
			}
			if why, soon := rt.blocked(s.now, s.request, path{w.ref, to.ref}); why != "" {
				if f = unreachable; soon {
					f = later
				}
			}
		}
		if best = min(best, f); best.usable() {
			return best
		}
	}
	return best
}
