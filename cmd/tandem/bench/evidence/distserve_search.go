package evidence

import (
	"cmp"
	"context"
	"slices"
)

// rateSearch bounds DistServe's search for a rate.
type rateSearch struct {
	// most is the highest rate, and within the precision of the search, both a GPU.
	most, within float64
	// requests is the number of requests at each rate.
	requests int
}

// best is the result of a search: the best layout and its goodput, in requests a second and
// GPU. A request is served in time if TTFT and TPOT are both within their bounds.
type best struct {
	rate   float64
	layout layout
}

// meets reports whether 90% of the requests are served in time at a rate a GPU.
func (a application) meets(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU, sloScale float64) (bool, error) {
	t, err := newTrial(o.Profiles, a.scenario(o, l, p, f, requests, sloScale))
	if err != nil {
		return false, err
	}
	return t.passes(ctx, perGPU*float64(l.gpus()), round)
}

// share is the share of the requests that are served in time at a rate a GPU.
func (a application) share(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU, sloScale float64) (float64, error) {
	t, err := newTrial(o.Profiles, a.scenario(o, l, p, f, requests, sloScale))
	if err != nil {
		return 0, err
	}
	figures, err := t.at(ctx, perGPU*float64(l.gpus()), round)
	return figures.SLOAttainment, err
}

// best finds the best layout by DistServe's search. As there, it searches a layout only if that
// is better than the best so far.
func (a application) best(ctx context.Context, o Options, layouts []layout, p placement, f fabric, s rateSearch, round int) (found best, err error) {
	for _, l := range layouts {
		passes := func(perGPU float64) (bool, error) {
			return a.meets(ctx, o, l, p, f, s.requests, round, perGPU, 1)
		}
		if found.rate > 0 {
			if better, err := passes(found.rate + s.within); err != nil {
				return found, err
			} else if !better {
				continue
			}
		}
		rate, err := bisect(found.rate, s.most, s.within, passes)
		if err != nil {
			return found, err
		}
		if rate > found.rate {
			found = best{rate, l}
		}
	}
	return found, nil
}

// rounds repeats best with n draws of arrivals and lengths. Each round tries the best layout of
// the last one first: a single rate then rules out most of the others.
func (a application) rounds(ctx context.Context, o Options, layouts []layout, p placement, f fabric, s rateSearch, n int) (all []best, err error) {
	for round := range n {
		found, err := a.best(ctx, o, layouts, p, f, s, round)
		if err != nil {
			return nil, err
		}
		all = append(all, found)
		first := func(l layout) int {
			if found.rate > 0 && l.String() == found.layout.String() {
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
func (a application) tightest(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU float64) (float64, error) {
	const widest, within = 4.0, 0.02
	found := false
	// bisect finds the highest value that passes, so it searches the inverse of the factor.
	tight, err := bisect(1/widest, 8, within, func(tight float64) (bool, error) {
		passed, err := a.meets(ctx, o, l, p, f, requests, round, perGPU, 1/tight)
		found = found || passed
		return passed, err
	})
	if !found {
		return 0, err
	}
	return 1 / tight, err
}
