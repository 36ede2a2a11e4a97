package routing

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// roundRobin gives workers requests in turn: the next to the one whose last is longest ago.
type roundRobin struct{}

func (roundRobin) waitsAtRouter() bool { return false }

func (roundRobin) mode() inferencev1.Mode { return inferencev1.Mode_MODE_AUTO }

func (roundRobin) near(_ *Router, options []*candidate) []*candidate {
	return least(options, func(c *candidate) uint64 { return c.worker.turn })
}
