package search

import "cmp"

// FindMaxOptions are the bounds of a search; zero means the default.
type FindMaxOptions = bounds

// NewFindMaxWith is NewFindMax with other bounds. Negative Repeats: no repeats.
func NewFindMaxWith(o FindMaxOptions) *Search {
	d := defaults(cmp.Or(o.Start, 1))
	return newFindMax(bounds{
		Start: d.Start, Factor: cmp.Or(o.Factor, d.Factor), Tolerance: cmp.Or(o.Tolerance, d.Tolerance),
		Min: cmp.Or(o.Min, d.Min), Max: cmp.Or(o.Max, d.Max), MaxSteps: cmp.Or(o.MaxSteps, d.MaxSteps),
		Repeats: max(0, cmp.Or(o.Repeats, d.Repeats)),
	})
}
