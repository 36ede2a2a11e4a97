package routing

// prefixAffinity chooses the worker that holds the most of the prompt, and of several the one
// with the fewest sequences.
func prefixAffinity(rt *Router, options []*candidate) []*candidate {
	return leastLoaded(rt, least(options, func(c *candidate) int { return c.uncached - c.expected }))
}
