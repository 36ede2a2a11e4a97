package routing

// leastLoaded chooses the worker with the fewest sequences, running and waiting.
func leastLoaded(_ *Router, options []*candidate) []*candidate {
	return least(options, func(c *candidate) int { return c.load.count })
}
