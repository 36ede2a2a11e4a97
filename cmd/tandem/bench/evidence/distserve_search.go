package evidence

import (
	"context"

	"github.com/tandem-serving/tandem/loadtest/search"
)

// rateSearch bounds DistServe's search for a rate.
type rateSearch struct {
	// most is the highest rate tried, within what the search stops at, both a GPU.
	most, within float64
	// requests is how many a rate gets.
	requests int
}

// best is what a search found: the goodput, requests a second and GPU, of the best layout.
// Requests are served in time if TTFT and TPOT are both within their bounds.
type best struct {
	rate   float64
	layout layout
}

// meets tells whether 90% of the requests are served in time at a rate a GPU.
func (a application) meets(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU, sloScale float64) (bool, error) {
	share, err := a.share(ctx, o, l, p, f, requests, round, perGPU, sloScale)
	return share >= search.Share, err
}

// share of the requests that are served in time at a rate a GPU.
func (a application) share(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU, sloScale float64) (float64, error) {
	t, err := newTrial(o.Profiles, a.scenario(o, l, p, f, requests, sloScale))
	if err != nil {
		return 0, err
	}
	figures, err := t.at(ctx, perGPU*float64(l.gpus()), round)
	return figures.SLOAttainment, err
}

// best of some layouts by DistServe's search. As there, a layout is only looked at if it is
// better than the best so far.
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

// tightest is the smallest scale of both bounds, up to 4, at which 90% of the requests are in
// time at a rate a GPU; 0: none.
func (a application) tightest(ctx context.Context, o Options, l layout, p placement, f fabric, requests, round int, perGPU float64) (float64, error) {
	const widest, within = 4.0, 0.02
	found := false
	// Bisected by how tight it is, so that what passes is low.
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
