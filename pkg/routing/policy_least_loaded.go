package routing

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// leastLoaded chooses the worker with the fewest sequences, running and waiting.
type leastLoaded struct{}

func (leastLoaded) waitsAtRouter() bool { return false }

func (leastLoaded) mode() inferencev1.Mode { return inferencev1.Mode_MODE_AUTO }

func (leastLoaded) near(rt *Router, options []*candidate) []*candidate {
	return least(options, func(c *candidate) int { return c.load.count })
}
