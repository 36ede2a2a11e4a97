package loadtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Plan is what a search is about to do.
type Plan struct {
	// Steps of a sweep in order; nil for a search whose next rate depends on the last.
	Steps []PlannedStep
	// Such a search begins at the rate Start. If it finds a rate between Least and Highest,
	// and each step tells something, it takes at most Most steps, which send requests for at most Bound.
	// Last answers take as much as Drain after each step.
	Start, Least, Highest float64
	Most                  int
	Bound, Drain          time.Duration
	// Every step lasts at least Shortest, with its warm-up, and longer until it has the
	// Requests that For needs: the verdict or a percentile. For is empty if each step's
	// length was given.
	Shortest time.Duration
	Requests int64
	For      string
	// Coarse: there are fewer rates than usual, since each takes so long.
	Coarse bool
	// most bounds how far the SLO may lengthen a step.
	most time.Duration
}

// PlannedStep is one run: its rate in requests per second, and how long it sends, with
// its warm-up.
type PlannedStep struct {
	Rate   float64
	Length time.Duration
	// Short: too short for Plan.Requests.
	Short bool
}

// Length is how long all steps send requests. It leaves out the wait for last responses.
func (p Plan) Length() time.Duration {
	total := time.Duration(0)
	for _, step := range p.Steps {
		total += step.Length
	}
	return total
}

// String says in a few lines how many rates there are, how long they take, why some last
// longer than --duration, and how to shorten them.
func (p Plan) String() string {
	if p.Most > 0 {
		return fmt.Sprintf("searching from %s on: at most %d steps that send requests for %v, usually less than half of that, if the highest rate is between %s and %s/s and no step is inconclusive; last answers may take %v more at each (--drain-timeout)\n%s",
			perSecond(p.Start), p.Most, p.Bound.Round(time.Second), number(p.Least), number(p.Highest), p.Drain, p.why())
	}
	if len(p.Steps) == 0 {
		return "no rates"
	}
	byRate := func(a, b PlannedStep) int { return cmp.Compare(a.Rate, b.Rate) }
	byLength := func(a, b PlannedStep) int { return cmp.Compare(a.Length, b.Length) }
	low, high := slices.MinFunc(p.Steps, byRate), slices.MaxFunc(p.Steps, byRate)
	long := slices.MaxFunc(p.Steps, byLength)
	text := fmt.Sprintf("%s, about %v", p.runs(low, high), p.Length().Round(time.Second))
	if p.Coarse {
		text += "; fewer rates than usual, since each takes so long"
	}
	if p.For != "" && long.Length >= p.Shortest+time.Second {
		text += "\n" + p.why() + fmt.Sprintf(": up to %v, at %s/s", long.Length.Round(time.Second), number(long.Rate)) + "\n" + p.shorten()
	}
	for _, step := range p.Steps {
		if step.Short {
			return text + fmt.Sprintf("\nat %s/s even %v is too short for that: percentiles with too few samples are left out", number(step.Rate), step.Length.Round(time.Second))
		}
	}
	return text
}

// runs says how many runs and rates there are, from the lowest step to the highest.
func (p Plan) runs(low, high PlannedStep) string {
	rates, lengths := map[float64]bool{}, map[time.Duration]bool{}
	for _, step := range p.Steps {
		rates[step.Rate], lengths[step.Length] = true, true
	}
	switch {
	case len(p.Steps) == 1:
		return "one rate, " + perSecond(low.Rate)
	case len(rates) == 1 && len(lengths) == 1:
		return fmt.Sprintf("%d runs of %v at %s", len(p.Steps), low.Length.Round(time.Second), perSecond(low.Rate))
	case len(rates) == 1:
		return fmt.Sprintf("%d runs at %s", len(p.Steps), perSecond(low.Rate))
	case len(rates) < len(p.Steps):
		return fmt.Sprintf("%d runs at %d rates from %s to %s", len(p.Steps), len(rates), number(low.Rate), perSecond(high.Rate))
	}
	return fmt.Sprintf("%d rates from %s to %s", len(p.Steps), number(low.Rate), perSecond(high.Rate))
}

// why says how long each step lasts.
func (p Plan) why() string {
	return fmt.Sprintf("each takes %v with its warm-up, or longer until it has the %d requests that %s needs", p.Shortest, p.Requests, p.For)
}

// shorten says how to make steps shorter.
func (p Plan) shorten() string {
	if p90 := stats.QuantileNeeds(0.9); p.Requests > p90 {
		return fmt.Sprintf("to shorten it, pass higher rates, or a lower percentile in --slo: p90 needs %d", p90)
	}
	return "higher rates shorten it"
}

// sweepStepMost bounds how far the SLO may lengthen a step of a sweep around the
// capacity: a user who gave no rates does not expect long waits at the slowest.
const sweepStepMost = 5 * time.Minute

// newPlan returns a plan without steps. The SLO may lengthen them up to most.
func (s *Session) newPlan(most time.Duration) Plan {
	return Plan{
		Shortest: s.cfg.warmup() + max(s.cfg.Duration, s.objectives.minDuration),
		Requests: s.objectives.needs, For: s.objectives.needsFor, most: most,
	}
}

// plan returns a sweep over rates. The SLO may lengthen steps up to most.
func (s *Session) plan(rates []float64, most time.Duration) (Plan, error) {
	p := s.newPlan(most)
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

// fits reports as an error that a step's records would take too much memory, before the
// first step runs.
func (s *Session) fits(p Plan) error {
	for _, step := range p.Steps {
		rate := s.cfg.Workload.MeanRate(s.params(step.Rate, 0, step.Length))
		if err := drive.Fits(rate, step.Length, drive.DefaultMemoryLimit); err != nil {
			return err
		}
	}
	return nil
}

// planAround returns a sweep around a capacity. It has fewer rates if the SLO more than
// doubles its length.
func (s *Session) planAround(capacity float64) (Plan, error) {
	p, err := s.plan(Rates(capacity), sweepStepMost)
	if alone := time.Duration(len(p.Steps)) * (s.cfg.warmup() + s.cfg.Duration); err != nil || p.Length() <= 2*alone {
		return p, err
	}
	p, err = s.plan(ratesAt(capacity, 0.3, 0.5, 0.7, 0.9, 1.2), sweepStepMost)
	p.Coarse = true
	return p, err
}

// A search is planned for rates within this factor of its first.
const reach = 4

// planSearch returns the plan of a search for the highest rate.
func (s *Session) planSearch(start float64) (Plan, error) {
	p := s.newPlan(maxStep)
	p.Start, p.Least, p.Highest, p.Drain = start, start/reach, start*reach, s.cfg.DrainTimeout
	var err error
	p.Most, p.Bound, err = s.bound(start, nil, p.Least, p.Highest)
	return p, err
}

// left says how long the rest of a search sends requests, if no step is inconclusive. It is empty until one rate has
// passed and one has failed, and where Drive does the runs, whose time is its own.
func (s *Session) left(start float64, searching *search.Search) string {
	bracket := searching.Result().Bracket
	if bracket == nil || s.cfg.Drive != nil {
		return ""
	}
	_, length, err := s.bound(start, searching.Steps(), bracket[0], bracket[1])
	if err != nil {
		return "" // the step will say so
	}
	return fmt.Sprintf(" (sends for up to %v more)", length.Round(time.Second))
}

// bound is how many more steps a search takes at most, and how long they send requests,
// if the highest rate is between low and high. It simulates searches for a range of such
// rates in the worst case: each rate takes three runs to decide.
func (s *Session) bound(start float64, done []search.Step, low, high float64) (steps int, length time.Duration, err error) {
	const tried = 16
	for i := range tried + 1 {
		highest := low * math.Pow(high/low, float64(i)/tried)
		searching, runs := search.NewFindMax(start), map[float64]int{}
		for _, step := range done {
			searching.Done(step)
			runs[step.Rate]++
		}
		n, total := 0, time.Duration(0)
		for rate, more := searching.Next(); more; rate, more = searching.Next() {
			one, err := s.cfg.stepLength(s.objectives, rate, 1, maxStep)
			if err != nil {
				return 0, 0, err
			}
			n, total = n+1, total+s.cfg.warmup()+one
			runs[rate]++
			verdict := measure.Backlogged
			if runs[rate] == 2 || runs[rate] > 2 && rate <= highest {
				verdict = measure.Stable
			}
			searching.Done(search.Step{Rate: rate, Summary: &measure.Summary{Verdict: verdict}})
		}
		steps, length = max(steps, n), max(length, total)
	}
	return steps, length, nil
}
