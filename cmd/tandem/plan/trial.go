package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Trial is a size that was simulated.
type Trial struct {
	Size
	// Met: the cluster kept up, and every objective was met. Why says why not.
	Met bool   `json:"met"`
	Why string `json:"why,omitempty"`
	// TTFTP99 and TPOTP99 in milliseconds; nil if there are too few requests.
	TTFTP99 *float64 `json:"ttft_p99_ms"`
	TPOTP99 *float64 `json:"tpot_p99_ms"`

	figures report.Figures
	// late is whether the time to the first token was not met, slow whether that between
	// tokens was not. Overload is both.
	late, slow bool
}

// Windows of simulations.
const (
	// leastRequests are those of a trial, finalRequests those of the last.
	leastRequests = 1500
	finalRequests = 6000
	// enough is how many times more requests there are than the highest percentile needs.
	enough = 1.25
	// settling is the least warm-up in times of a mean answer: after it, about as many
	// answers run as ever. Requests may take as many times the longest one alone.
	settling = 2
	// longestRun bounds a run of drawn arrivals.
	longestRun = 4 * time.Hour
)

// load is the load of a run with at least so many requests.
func (p *planner) load(requests int) loadtest.Config {
	load := p.question.Load
	load.SLO = p.formulas.slo.String()
	usual, longest := loadtest.DefaultConfig(), time.Duration(settling*p.formulas.longest()*float64(time.Second)).Round(time.Second)
	if load.DrainTimeout == usual.DrainTimeout {
		load.DrainTimeout = max(load.DrainTimeout, longest)
	}
	if load.RequestTimeout == usual.RequestTimeout {
		load.RequestTimeout = max(load.RequestTimeout, longest)
	}
	if load.Workload.OwnTimes() {
		return load
	}
	if !load.WarmupSet {
		answer := p.formulas.service.Seconds + p.formulas.decode.steps*p.formulas.decode.stepSeconds(float64(p.formulas.decode.most))
		load.Warmup = max(load.Warmup, min(time.Duration(settling*answer*float64(time.Second)), time.Hour)).Round(time.Second)
	}
	if load.DurationSet {
		return load
	}
	for _, t := range p.formulas.slo.Terms {
		requests = max(requests, int(enough*float64(stats.QuantileNeeds(quantile(t)))))
	}
	seconds := min(float64(max(requests, load.MinRequests))/load.Rate, longestRun.Seconds())
	load.Duration = max(load.Duration, time.Duration(math.Ceil(seconds))*time.Second)
	load.MinRequests, load.DurationSet = 0, true
	return load
}

// try simulates a load on a size.
func (p *planner) try(ctx context.Context, load loadtest.Config, size Size) (*Trial, error) {
	p.simulated++
	figures, err := p.measure(ctx, load, size, size.String())
	if err != nil {
		return nil, err
	}
	t := &Trial{Size: size, figures: figures, TTFTP99: figures.TTFT.P99, TPOTP99: figures.TPOT.P99}
	err = t.judge(load.Workload.OwnTimes())
	return t, err
}

// measure simulates a load on a size.
func (p *planner) measure(ctx context.Context, load loadtest.Config, size Size, what string) (report.Figures, error) {
	c := p.cluster(size)
	load.Drive = c.Drive
	session, err := loadtest.NewSession(ctx, load, c, p.progress)
	if err != nil {
		return report.Figures{}, err
	}
	session.Round(0)
	figures, err := session.Step(ctx, what, load.Rate)
	switch {
	case err != nil:
		return figures, err
	case ctx.Err() != nil:
		return figures, ctx.Err()
	case figures.Requests == 0:
		return figures, errors.New("no request is due in the measured window: raise --duration or the rate, or lower --warmup")
	}
	return figures, nil
}

// judge says whether a trial met its objectives; its error is that this cannot be told.
// Whether a trace ends with a backlog says nothing about the cluster.
func (t *Trial) judge(recorded bool) error {
	f := &t.figures
	fail := func(late, slow bool, why string) {
		if t.Why == "" {
			t.Why = why
		}
		t.late, t.slow = t.late || late, t.slow || slow
	}
	overloaded := f.Verdict == measure.Overloaded || f.Verdict == measure.Backlogged && !recorded
	for _, o := range f.Objectives {
		if o.Met {
			continue
		}
		if o.Measured == nil && !o.Missed {
			if overloaded {
				continue // which is a miss
			}
			return fmt.Errorf("%d requests do not decide %s: %s: pass a longer --duration or --drain-timeout, or more of the trace", f.Requests, o.Term, o.Why)
		}
		why := o.Term + ": " + o.Why
		if o.Measured != nil {
			why = fmt.Sprintf("%s: %.4g ms", o.Term, *o.Measured)
		}
		term, _ := o.Parsed() // it is one of this run
		fail(term.Latency == "ttft" || term.Latency == "e2e", term.Latency != "ttft", why)
	}
	if t.Why == "" && overloaded {
		fail(true, true, string(f.Verdict)+": "+f.Reason)
	}
	t.Met = t.Why == ""
	return nil
}
