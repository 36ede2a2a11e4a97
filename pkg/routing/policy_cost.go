package routing

import "slices"

// nearBestMs is the difference of cost that no prediction can resolve.
const nearBestMs = 0.5

// nearLimit is what candidates cost at most that are near the best.
func (rt *Router) nearLimit(best *candidate) float64 {
	return best.totalMs + best.firstMs*rt.config.NearBest + nearBestMs
}

// leastCost chooses by the predicted cost, for policies that refuse what would miss its objective: of
// workers near the least cost one that is about to hold the prompt, if there is one, and of those one with
// the fewest of this router's requests. Those that would miss the objective count only if all would. How
// near is measured by the time to the first token alone: the time for output tokens is much the same
// everywhere and would hide what a cached prefix saves.
func leastCost(rt *Router, options []*candidate) []*candidate {
	if meets := slices.ContainsFunc(options, func(c *candidate) bool { return !c.misses }); meets {
		options = slices.DeleteFunc(options, func(c *candidate) bool { return c.misses })
	}
	best := options[0]
	for _, c := range options {
		if c.totalMs < best.totalMs {
			best = c
		}
	}
	limit := rt.nearLimit(best)
	near := rt.nearScratch[:0]
	for _, c := range options {
		if c.totalMs <= limit {
			near = append(near, c)
		}
	}
	rt.nearScratch = near
	if len(near) == 0 {
		near = options // the costs are NaN
	}
	if slices.ContainsFunc(near, func(c *candidate) bool { return c.expected > 0 }) {
		near = least(near, func(c *candidate) int { return c.computed() })
	}
	return least(near, func(c *candidate) int { return c.worker.owned })
}
