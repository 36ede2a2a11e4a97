package search

import (
	"cmp"
	"fmt"
)

const (
	// Share is the share of requests that meet the SLO at a server's capacity and below.
	Share = 0.9
	// Fine is the usual tolerance of a capacity.
	Fine = 0.01
	// capacitySteps bounds a search for a capacity.
	capacitySteps = 40
)

// NewCapacity searches for a server's capacity: the highest rate at which Share of the
// requests meet the SLO, whether the others were late, refused or not sent. It begins at
// start and multiplies or divides by factor until it has a rate on both sides. The lowest
// rate above its capacity that it has tried is higher by at most tolerance, relatively.
//
// Each rate is tried once, so all must have the same random numbers of arrivals and
// lengths: their share then hardly rises with the rate.
func NewCapacity(start, factor, tolerance float64) *Search {
	b := defaults(start)
	b.Factor, b.Tolerance, b.MaxSteps, b.Repeats = factor, tolerance, capacitySteps, 0
	s := newFindMax(b)
	s.judge = attained
	return s
}

// attained judges a step by the share of requests that met the SLO.
func attained(step Step) (found finding, why string) {
	switch s := step.Summary; {
	case s == nil:
		return inconclusive, cmp.Or(step.Why, "it was not measured")
	case step.Interrupted:
		return inconclusive, cmp.Or(step.Why, "interrupted")
	case s.Requests == 0:
		return inconclusive, "no request was due in the window; make it longer or raise the rate"
	case s.SLOAttainment < Share:
		return failed, fmt.Sprintf("%.1f%% of the requests met the SLO", 100*s.SLOAttainment)
	}
	return passed, ""
}
