package contenders

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// Options say how to compare at rates.
type Options struct {
	// Load is what is sent in a step; its Rate and Sweep are not used.
	Load loadtest.Config
	// Carry are the bounds that requests ask of the router.
	Carry Bounds
	// Rates to measure; nil: those of loadtest.Rates around the largest capacity.
	Rates []float64
	// Share of the first contender's capacity, if above 0, is the only rate instead.
	Share float64
	// Rounds is how often each measures every rate.
	Rounds int
}

// Result is what was measured.
type Result struct {
	// Capacity of each, requests a second, as Session.Estimate found it; nil if the
	// rates were given.
	Capacity []float64
	// Steps in the order in which they were measured.
	Steps    []Step
	Outcomes []*loadtest.Outcome
	// Interrupted: it ended early.
	Interrupted bool
}

// Step is one rate, measured by all, one after the other. Its JSON has what the
// reports do not say. Each list is by contender.
type Step struct {
	Rate    float64          `json:"rate"`
	Figures []report.Figures `json:"-"`
	// CPUSeconds that each part used meanwhile.
	CPUSeconds []map[string]float64 `json:"cpu_s"`
	// Seconds that it took, warm-up and drain included.
	Seconds []float64 `json:"-"`
}

// Run starts the contenders, measures them at rates and stops them. An end of ctx ends it
// early, with the steps that are whole; if there is none the error is ErrInterrupted. Another error comes
// with the steps that were whole before it, nil if there are none.
func Run(ctx context.Context, wanted []Contender, o Options, progress loadtest.Progress) (result *Result, err error) {
	err = Use(ctx, wanted, func(s *Set) (err error) {
		result, err = s.AtRates(ctx, o, progress)
		return err
	})
	return result, err
}

// AtRates measures the contenders at rates. An end of ctx and errors end it early as they do Run.
func (s *Set) AtRates(ctx context.Context, o Options, progress loadtest.Progress) (*Result, error) {
	if err := s.open(ctx, o.Load, o.Carry, progress); err != nil {
		return nil, err
	}
	result := &Result{}
	rates, err := o.rates(ctx, s.all, result)
	if err != nil {
		return nil, err
	}
	rounds := max(o.Rounds, 1)
	if err := announce(s.all, rates, rounds, progress); err != nil {
		return nil, err
	}
	for round := range rounds {
		for n, rate := range rates {
			step, whole, err := together(ctx, s.all, rate, round+n)
			if err != nil || !whole {
				result.Interrupted = true
				if len(result.Steps) == 0 {
					return nil, cmp.Or(err, ErrInterrupted)
				}
				result.Outcomes = s.outcomes()
				return result, err
			}
			result.Steps = append(result.Steps, step)
		}
	}
	result.Outcomes = s.outcomes()
	return result, nil
}

// announce tells progress of all runs that follow.
func announce(all []*running, rates []float64, rounds int, progress loadtest.Progress) error {
	if progress == nil {
		return nil
	}
	var plan loadtest.Plan
	for _, rate := range slices.Repeat(rates, rounds) {
		for _, r := range all {
			step, err := r.session.Planned(rate)
			if err != nil {
				return r.failure(err)
			}
			plan.Steps = append(plan.Steps, step)
		}
	}
	progress.Plan(plan)
	return nil
}

// rates are those to measure.
func (o Options) rates(ctx context.Context, all []*running, result *Result) ([]float64, error) {
	if o.Rates != nil {
		return o.Rates, nil
	}
	for _, r := range all {
		capacity, err := r.session.Estimate(ctx)
		if err != nil {
			return nil, r.failure(err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		result.Capacity = append(result.Capacity, capacity)
	}
	if o.Share > 0 {
		return []float64{o.Share * result.Capacity[0]}, nil
	}
	return loadtest.Rates(slices.Max(result.Capacity)), nil
}

// together takes one step, whose number says who begins. It is not whole if ctx ended it.
func together(ctx context.Context, all []*running, rate float64, number int) (Step, bool, error) {
	n := len(all)
	step := Step{
		Rate: rate, Figures: make([]report.Figures, n), CPUSeconds: make([]map[string]float64, n), Seconds: make([]float64, n),
	}
	for _, i := range turn(n, number) {
		t, whole, err := all[i].take(ctx, fmt.Sprintf("%.4g requests/s", rate), rate)
		if err != nil || !whole {
			return step, false, err
		}
		step.Figures[i], step.CPUSeconds[i], step.Seconds[i] = t.figures, t.cpuSeconds, t.seconds
	}
	return step, true, nil
}
