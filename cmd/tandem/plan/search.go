package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
)

const (
	// mostTrials bounds the simulations of one search.
	mostTrials = 24
	// gains is by how much one more step of a pool has to improve what was missed for the
	// same pool to grow again.
	gains = 0.03
)

// fewest searches for the fewest workers that meet the SLO in simulation: from where the
// formulas begin it grows the pool whose phase is late, and then shrinks one pool after the
// other, down to the floor.
func (p *planner) fewest(ctx context.Context, begin, floor Size) (*Trial, error) {
	met, err := p.grow(ctx, begin)
	if err != nil {
		return nil, err
	}
	for _, pool := range []func(*Size) *int{func(s *Size) *int { return &s.Decode }, func(s *Size) *int { return &s.Prefill }} {
		low, high := *pool(&floor), *pool(&met.Size)
		for low < high && p.simulated < mostTrials {
			size := met.Size
			*pool(&size) = high - max((high-low)/2, 1)
			t, err := p.trial(ctx, size)
			if err != nil {
				return nil, err
			}
			if t.Met {
				met, high = t, *pool(&size)
			} else {
				low = *pool(&size) + 1
			}
		}
	}
	return p.confirm(ctx, met)
}

// confirm simulates the size for longer, and grows it while that misses the SLO.
func (p *planner) confirm(ctx context.Context, met *Trial) (*Trial, error) {
	long, short := p.load(finalRequests), p.load(leastRequests)
	if p.question.Load.DurationSet || long.Duration == short.Duration {
		return met, nil
	}
	size := met.Size
	for {
		t, err := p.try(ctx, long, size)
		if err != nil {
			return nil, err
		}
		p.record(t)
		if t.Met {
			return t, nil
		}
		if p.simulated > mostTrials {
			return nil, p.noSize(t)
		}
		if size, err = p.larger(t, size, 1, t.late && size.Prefill > 0); err != nil {
			return nil, err
		}
	}
}

// grow finds a size that meets the SLO, from begin on.
func (p *planner) grow(ctx context.Context, begin Size) (*Trial, error) {
	var last *Trial
	lastPrefill := false
	for size, step := begin, 1; ; step++ {
		t, err := p.trial(ctx, size)
		if err != nil {
			return nil, err
		}
		if t.Met {
			return t, nil
		}
		if p.simulated >= mostTrials {
			return nil, p.noSize(t)
		}
		prefill := t.late && size.Prefill > 0
		switch {
		case t.late && t.slow && size.Prefill > 0: // what is used the most
			used := p.formulas.utilisation(size)
			prefill = used["prefill"] > used["decode"]
		case last != nil && prefill == lastPrefill && !better(last, t):
			prefill = !prefill && size.Prefill > 0 // the other phase holds this one up
		}
		last, lastPrefill = t, prefill
		if size, err = p.larger(t, size, step, prefill); err != nil {
			return nil, err
		}
	}
}

// larger is a size with more workers in one pool: an eighth more for each step.
func (p *planner) larger(t *Trial, size Size, step int, prefill bool) (Size, error) {
	pool := &size.Decode
	if prefill {
		pool = &size.Prefill
	}
	*pool += max(*pool*step/8, 1)
	if size.Workers() > p.question.MaxWorkers {
		return size, p.tooMany(fmt.Sprintf("%s miss it (%s)", t.Size, t.Why))
	}
	return size, nil
}

// better is whether what was missed came nearer to its bound.
func better(before, now *Trial) bool {
	if now.late {
		return nearer(before.TTFTP99, now.TTFTP99)
	}
	return nearer(before.TPOTP99, now.TPOTP99)
}

func nearer(before, now *float64) bool {
	return before == nil || now == nil || *now < *before*(1-gains)
}

// trial simulates a size once.
func (p *planner) trial(ctx context.Context, size Size) (*Trial, error) {
	if i := slices.IndexFunc(p.trials, func(t *Trial) bool { return t.Size == size }); i >= 0 {
		return p.trials[i], nil
	}
	t, err := p.try(ctx, p.load(leastRequests), size)
	if err != nil {
		return nil, err
	}
	p.record(t)
	return t, nil
}

// record keeps a trial, the last of each size.
func (p *planner) record(t *Trial) {
	p.trials = slices.DeleteFunc(p.trials, func(o *Trial) bool { return o.Size == t.Size })
	p.trials = append(p.trials, t)
}

// noSize is the error if the search ends without a size.
func (p *planner) noSize(t *Trial) error {
	return &Infeasible{
		Reason:  fmt.Sprintf("%d simulations found no size that keeps the SLO: %s miss it (%s)", p.simulated, t.Size, t.Why),
		Nearest: p.reached(t),
	}
}

// tooMany is the error if more than --max-workers would be needed.
func (p *planner) tooMany(why string) error {
	e := &Infeasible{Reason: fmt.Sprintf("it takes more than %s (--max-workers): %s", report.Count(p.question.MaxWorkers, "worker", "workers"), why), Nearest: "not known: raise --max-workers"}
	if n := len(p.trials); n > 0 {
		e.Nearest = p.reached(p.trials[n-1])
	}
	return e
}

// reached is the SLO that a trial would have met.
func (p *planner) reached(t *Trial) string {
	reached := slices.Clone(p.formulas.askedSLO.Terms)
	for i, term := range p.formulas.slo.Terms {
		for _, o := range t.figures.Objectives {
			if o.Class != "" || o.Term != term.String() || o.Met {
				continue
			}
			if o.Measured == nil {
				return "not known: the load is too much for that many workers"
			}
			reached[i].Bound = seconds(*o.Measured / 1000 * 1.05)
		}
	}
	return measure.SLO{Terms: reached}.String()
}

// searchAggregatedBelow searches for the fewest workers that do both phases, if they are fewer than most;
// nil if they are not.
func (p *planner) searchAggregatedBelow(ctx context.Context, most int) (*Trial, error) {
	constraints, err := p.formulas.constraints("both")
	if err != nil {
		return nil, err
	}
	_, floor := sizes(constraints)
	var met *Trial
	for low, high := floor.Decode, most; low < high && p.simulated < 2*mostTrials; {
		size := Size{Decode: high - max((high-low)/2, 1)}
		if met == nil { // whether there are any at all comes first
			size.Decode = high - 1
		}
		t, err := p.trial(ctx, size)
		switch {
		case err != nil:
			return nil, err
		case t.Met:
			met, high = t, size.Decode
		case met == nil:
			return nil, nil
		default:
			low = size.Decode + 1
		}
	}
	if met == nil {
		return nil, nil
	}
	met, err = p.confirm(ctx, met)
	if _, is := errors.AsType[*Infeasible](err); is || err == nil && met.Decode >= most {
		return nil, nil
	}
	return met, err
}

// whyNotOneFewer says why one worker fewer, all of which do both phases, do not suffice.
func (p *planner) whyNotOneFewer(size Size) string {
	one := Size{Decode: size.Workers() - 1}
	if slices.ContainsFunc(p.trials, func(t *Trial) bool { return t.Size == one && !t.Met }) {
		return one.String() + " would miss the SLO"
	}
	constraints, _ := p.formulas.constraints("both") // the search had no error of them
	for _, c := range constraints {
		if c.Workers > one.Decode {
			return fmt.Sprintf("%s would break the rule of %s, which takes %d", one, c.Name, c.Workers)
		}
	}
	return one.String() + ": not tried"
}
