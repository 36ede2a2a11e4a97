package evidence

import (
	"cmp"
	"context"
	"slices"
)

// deployment is what serves an application, and how many requests try it at a rate.
type deployment struct {
	layout    layout
	placement placement
	fabric    fabric
	requests  int
}

// found is the result of a search: the best layout and its goodput, in requests a second for each GPU, or
// for so many dollars.
type found struct {
	rate   float64
	layout layout
}

// meets reports whether 90% of the requests are served in time at a rate a GPU.
func (a application) meets(ctx context.Context, o Options, on deployment, round int, perGPU, sloScale float64) (bool, error) {
	t, err := newTrial(o.Profiles, a.scenario(o, on, sloScale))
	if err != nil {
		return false, err
	}
	return t.passes(ctx, perGPU*on.layout.cost(), round)
}

// share is the share of the requests that are served in time at a rate a GPU.
func (a application) share(ctx context.Context, o Options, on deployment, round int, perGPU, sloScale float64) (float64, error) {
	t, err := newTrial(o.Profiles, a.scenario(o, on, sloScale))
	if err != nil {
		return 0, err
	}
	figures, err := t.at(ctx, perGPU*on.layout.cost(), round)
	return figures.SLOAttainment, err
}

// rounds searches the layouts, which take the place of that of on, for the best with n draws of
// arrivals and lengths. Each round tries the best layout of the last one first: a single rate then
// rules out most of the others.
func (a application) rounds(ctx context.Context, o Options, on deployment, layouts []layout, s rateSearch, n int) (all []found, err error) {
	for round := range n {
		var best found
		best.layout, best.rate, err = bestOf(layouts, s, func(l layout, perGPU float64) (bool, error) {
			on.layout = l
			return a.meets(ctx, o, on, round, perGPU, 1)
		})
		if err != nil {
			return nil, err
		}
		all = append(all, best)
		first := func(l layout) int {
			if best.rate > 0 && l.String() == best.layout.String() {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(layouts, func(a, b layout) int { return cmp.Compare(first(a), first(b)) })
	}
	return all, nil
}

// tightest is the smallest factor of both bounds, up to 4, with which 90% of the requests are
// in time at a rate a GPU; 0 if there is none.
func (a application) tightest(ctx context.Context, o Options, on deployment, round int, perGPU float64) (float64, error) {
	const widest, within = 4.0, 0.02
	found := false
	// bisect finds the highest value that passes, so it searches the inverse of the factor.
	tight, err := bisect(1/widest, 8, within, func(tight float64) (bool, error) {
		passed, err := a.meets(ctx, o, on, round, perGPU, 1/tight)
		found = found || passed
		return passed, err
	})
	if !found {
		return 0, err
	}
	return 1 / tight, err
}
