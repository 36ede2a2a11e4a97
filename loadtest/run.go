package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// Outcome is a benchmark's result.
type Outcome struct {
	// Report is complete except for Name and Command, which the caller sets.
	Report *report.Report
	// Runs are the records of all runs, in the order of Report.Runs. Without
	// Config.KeepRecords only the last run's are kept.
	Runs []*record.Run
	// NextStep is Config.FirstStep for what measures the server next.
	NextStep int
}

// Run measures a server. If ctx ends, it returns what was measured so far, marked as
// interrupted, without an error. progress may be nil.
func Run(ctx context.Context, cfg Config, server client.Client, progress Progress) (*Outcome, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, err := NewSession(ctx, cfg, server, progress)
	if err != nil {
		return nil, err
	}
	result, err := s.measure(ctx)
	if err != nil {
		return nil, err
	}
	if len(s.figures) == 0 {
		return nil, errors.New("interrupted before anything was measured")
	}
	return s.Outcome(result), nil
}

// measure does the requested runs; the result is nil without a search.
func (s *Session) measure(ctx context.Context) (*search.Result, error) {
	switch {
	case s.cfg.Sweep != "":
		plan, err := s.sweepPlan(ctx)
		if err != nil || plan == nil {
			return nil, err
		}
		return s.sweep(ctx, *plan)
	case s.cfg.FindMax:
		start, err := s.startRate(ctx)
		if err != nil || start == 0 {
			return nil, err
		}
		return s.findMax(ctx, start)
	}
	what := perSecond(s.cfg.Rate)
	switch {
	case s.cfg.Concurrency > 0:
		what = fmt.Sprintf("concurrency %d", s.cfg.Concurrency)
	case s.cfg.Workload.OwnTimes():
		what = "trace"
	}
	length, err := s.cfg.length(s.objectives, s.cfg.Rate)
	if err != nil {
		return nil, err
	}
	if err := s.one(ctx, what, s.cfg.Rate, s.cfg.Concurrency, length); err != nil {
		return nil, err
	}
	return nil, s.empty()
}

// empty is the error of a single run in which nothing counts.
func (s *Session) empty() error {
	run := s.last
	last := len(run.Records) - 1
	switch {
	case run.Interrupted:
	case last < 0 && s.cfg.Workload.Trace != "":
		return errors.New("the trace holds no requests")
	case last >= 0 && run.Records[last].Due < run.From:
		return fmt.Errorf("all requests (%d) were due in the warm-up of %s: pass a shorter --warmup, or 0s for none", len(run.Records), run.From)
	}
	return nil
}

// sweep announces a plan and measures its rates.
func (s *Session) sweep(ctx context.Context, plan Plan) (*search.Result, error) {
	rates := make([]float64, len(plan.Steps))
	for i, step := range plan.Steps {
		rates[i] = step.Rate
	}
	if s.progress != nil {
		s.progress.Plan(plan)
	}
	return s.search(ctx, search.NewSweep(rates), plan.most, func(step int, rate float64) string {
		return fmt.Sprintf("step %d of %d, %s", step, len(rates), perSecond(rate))
	})
}

// findMax searches for the highest rate, and says for how long that sends requests.
func (s *Session) findMax(ctx context.Context, start float64) (*search.Result, error) {
	plan, err := s.planSearch(start)
	if err != nil {
		return nil, err
	}
	if s.progress != nil {
		s.progress.Plan(plan)
	}
	searching := search.NewFindMax(start)
	return s.search(ctx, searching, plan.most, func(step int, rate float64) string {
		return fmt.Sprintf("step %d, %s%s", step, perSecond(rate), s.left(start, searching))
	})
}

// search measures the rates that a search asks for. The SLO may lengthen steps up to most.
func (s *Session) search(ctx context.Context, searching *search.Search, most time.Duration, what func(step int, rate float64) string) (*search.Result, error) {
	for step := 1; ; step++ {
		rate, more := searching.Next()
		if !more {
			break
		}
		if ctx.Err() != nil {
			s.interrupted = true
			break
		}
		length, err := s.cfg.stepLength(s.objectives, rate, searching.Stretch(), most)
		if err == nil {
			err = s.one(ctx, what(step, rate), rate, 0, length)
		}
		switch {
		case err != nil && len(s.figures) == 0:
			return nil, err
		case err != nil: // what was measured before remains
			searching.Done(search.Step{Rate: rate, Why: err.Error()})
			continue
		}
		done := s.step(len(s.figures) - 1)
		done.Rate = rate
		searching.Done(done)
		if s.last.Interrupted {
			break
		}
	}
	result := searching.Result()
	return &result, nil
}

// startRate is where a search for the highest rate starts: --rate, or half of the
// closed-loop throughput. 0 if interrupted first.
func (s *Session) startRate(ctx context.Context) (float64, error) {
	if s.cfg.Rate > 0 {
		return s.cfg.Rate, nil
	}
	capacity, err := s.Estimate(ctx)
	return search.Round(capacity/2, 3), err
}

// sweepPlan returns the sweep's plan, nil if interrupted first.
func (s *Session) sweepPlan(ctx context.Context) (*Plan, error) {
	rates, err := s.cfg.rates()
	if err != nil {
		return nil, err
	}
	var plan Plan
	if rates != nil {
		if plan, err = s.plan(rates, maxStep); err == nil {
			err = s.fits(plan)
		}
		return &plan, err
	}
	capacity, err := s.Estimate(ctx)
	if err != nil || capacity == 0 {
		return nil, err
	}
	plan, err = s.planAround(capacity)
	return &plan, err
}

const (
	// To find the maximum throughput, estimateConcurrency requests are kept in flight for
	// estimateTime after estimateWarmup.
	estimateConcurrency = 64
	estimateTime        = 10 * time.Second
	estimateWarmup      = 3 * time.Second
	// passRates says how to do without.
	passRates = "pass rates, as in --sweep=1,2,4 or --find-max --rate=1"
)

// Estimate is the throughput with 64 requests in flight, or as many as allowed: the
// server's capacity, or slightly less. 0 if ctx ended.
func (s *Session) Estimate(ctx context.Context) (float64, error) {
	run, err := s.drive(ctx, "estimating the capacity", 0, min(estimateConcurrency, s.cfg.InFlightLimit), estimateWarmup, estimateTime)
	if err != nil || run.Interrupted {
		return 0, err
	}
	if run.To <= run.From {
		return 0, fmt.Errorf("the trace ended within the warm-up of %v: %s", estimateWarmup, passRates)
	}
	if capacity := throughput(run); capacity > 0 {
		return capacity, nil
	}
	return 0, fmt.Errorf("no request of the %d sent to estimate the capacity was completed: %s; %s",
		len(run.Records), failureOf(run), passRates)
}

// Rates are those of a sweep around a capacity: dense where the knee is expected, and
// past the breaking point.
func Rates(capacity float64) []float64 {
	return ratesAt(capacity, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.15, 1.4)
}

func ratesAt(capacity float64, fractions ...float64) []float64 {
	rates := make([]float64, len(fractions))
	for i, fraction := range fractions {
		rates[i] = search.Round(fraction*capacity, 3)
	}
	return rates
}

// throughput is the rate of completions in the window.
func throughput(run *record.Run) float64 {
	completed := 0
	for _, r := range run.Records {
		if r.Outcome == record.Completed && r.End >= run.From && r.End <= run.To {
			completed++
		}
	}
	return float64(completed) / (run.To - run.From).Seconds()
}

// failureOf describes the failure of the first uncompleted request.
func failureOf(run *record.Run) string {
	for _, r := range run.Records {
		if r.Outcome != record.Completed && r.Outcome != record.Cancelled {
			return fmt.Sprintf("%s %s: %s", r.Outcome, r.Code, r.Error)
		}
	}
	return "they took too long"
}
