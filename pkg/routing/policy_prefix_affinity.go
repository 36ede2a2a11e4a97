package routing

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// prefixAffinity chooses the worker that holds the most of the prompt, and of several the one
// with the fewest sequences.
type prefixAffinity struct{}

func (prefixAffinity) waitsAtRouter() bool { return false }

func (prefixAffinity) mode() inferencev1.Mode { return inferencev1.Mode_MODE_AUTO }

func (prefixAffinity) near(rt *Router, options []*candidate) []*candidate {
	return leastLoaded{}.near(rt, least(options, func(c *candidate) int { return c.uncached - c.expected }))
}
