package routing

// roundRobin gives workers requests in turn: the next to the one whose last is longest ago.
func roundRobin(_ *Router, options []*candidate) []*candidate {
	return least(options, func(c *candidate) uint64 { return c.worker.turn })
}
