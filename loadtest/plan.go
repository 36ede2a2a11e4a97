package loadtest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Plan is what a sweep is about to do.
type Plan struct {
	// Steps in the order in which they are run.
	Steps []PlannedStep
	// Requests is how many a step takes to tell its SLO and a verdict.
	Requests int64
	// Coarse: fewer rates than usual, since each takes so long.
	Coarse bool
	// most is how long a step lasts at most for the sake of the SLO.
	most time.Duration
}

// PlannedStep is one run: its rate, requests a second, and how long it sends requests,
// warm-up included.
type PlannedStep struct {
	Rate   float64
	Length time.Duration
	// Short: it is too short for Plan.Requests.
	Short bool
}

// Length is how long all steps send requests; waiting for the last answers comes on top.
func (p Plan) Length() time.Duration {
	total := time.Duration(0)
	for _, step := range p.Steps {
		total += step.Length
	}
	return total
}

// String says it in a line: how many rates, how long, and why some take longer.
func (p Plan) String() string {
	if len(p.Steps) == 0 {
		return "no rates"
	}
	byRate := func(a, b PlannedStep) int { return cmp.Compare(a.Rate, b.Rate) }
	byLength := func(a, b PlannedStep) int { return cmp.Compare(a.Length, b.Length) }
	low, high := slices.MinFunc(p.Steps, byRate), slices.MaxFunc(p.Steps, byRate)
	short, long := slices.MinFunc(p.Steps, byLength), slices.MaxFunc(p.Steps, byLength)
	text := fmt.Sprintf("%d rates from %s to %s requests/s, about %v", len(p.Steps), number(low.Rate), number(high.Rate), p.Length().Round(time.Second))
	if len(p.Steps) == 1 {
		text = fmt.Sprintf("one rate, %s requests/s, about %v", number(low.Rate), p.Length().Round(time.Second))
	}
	if p.Coarse {
		text += fmt.Sprintf("; fewer rates than usual, because the verdict of each needs %d requests", p.Requests)
	}
	if long.Length >= short.Length+time.Second {
		text += fmt.Sprintf("; the longest step takes %v, at %s/s", long.Length.Round(time.Second), number(long.Rate))
		if !p.Coarse {
			text += fmt.Sprintf(", for the %d requests that its verdict needs", p.Requests)
		}
	}
	for _, step := range p.Steps {
		if step.Short {
			return text + fmt.Sprintf("; at %s/s that is too short: percentiles with too few samples are left out", number(step.Rate))
		}
	}
	return text
}

// sweepStepMost is how long a step of a sweep around the capacity lasts at most for the
// sake of its SLO: who gave no rates did not ask for minutes at the slowest of them.
const sweepStepMost = 5 * time.Minute

// plan is a sweep over rates whose steps last at most so long for the sake of the SLO.
func (s *Session) plan(rates []float64, most time.Duration) (Plan, error) {
	p := Plan{Requests: s.objectives.stepRequests, most: most}
	for _, rate := range rates {
		length, err := s.cfg.stepLength(s.objectives, rate, 1, most)
		if err != nil {
			return Plan{}, err
		}
		p.Steps = append(p.Steps, PlannedStep{
			Rate: rate, Length: s.cfg.warmup() + length, Short: length.Seconds()*rate < float64(p.Requests)-1,
		})
	}
	return p, nil
}

// planAround is a sweep around a capacity. Where the SLO makes it last more than twice
// as long as --duration does, it has half as many rates.
func (s *Session) planAround(capacity float64) (Plan, error) {
	p, err := s.plan(Rates(capacity), sweepStepMost)
	if alone := time.Duration(len(p.Steps)) * (s.cfg.warmup() + s.cfg.Duration); err != nil || p.Length() <= 2*alone {
		return p, err
	}
	p, err = s.plan(ratesAt(capacity, 0.3, 0.5, 0.7, 0.9, 1.2), sweepStepMost)
	p.Coarse = true
	return p, err
}
