package routing

import (
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// leastCost chooses by the predicted cost, and refuses what would miss its objective.
type leastCost struct{ of inferencev1.Mode }

func (leastCost) waitsAtRouter() bool { return true }

func (p leastCost) mode() inferencev1.Mode { return p.of }

// nearBestMs is the difference of cost that no prediction can resolve.
const nearBestMs = 0.5

// nearLimit is what candidates cost at most that are near the best.
func (rt *Router) nearLimit(best *candidate) float64 {
	return best.totalMs + best.firstMs*rt.config.NearBest + nearBestMs
}

// near are those near the least cost that run the fewest of this router's requests, but rather
// those that are about to hold the prompt than others. How near
// is measured by the time to the first token alone: the time for output tokens is much the
// same everywhere and would hide what a cached prefix saves.
func (leastCost) near(rt *Router, options []*candidate) []*candidate {
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
