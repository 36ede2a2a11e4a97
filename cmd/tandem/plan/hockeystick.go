package plan

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// shares of the planned rate that the curve is drawn from. 1 is among them.
var shares = []float64{0.25, 0.5, 0.7, 0.85, 1, 1.1, 1.2, 1.35, 1.5, 1.75}

// Report simulates the planned workers at rates around the planned one: the curve of latency
// over rate, the planned rate marked on it. Of a recorded load it changes the speed. began is
// when planning began. The caller sets Name, Version and Command.
func (plan *Plan) Report(ctx context.Context, began time.Time) (*report.Report, error) {
	p := plan.planner
	rate := plan.Traffic.RatePerSecond
	load := p.load(leastRequests)
	recorded := load.Workload.OwnTimes()
	if !recorded {
		rate = load.Rate // conversations count once
	}
	var (
		rates   []float64
		figures []report.Figures
		planned report.Figures
	)
	for _, share := range shares {
		at := load
		f := search.Round(rate*share, 4)
		if recorded {
			at.Workload.Speed *= share
		} else {
			at.Rate = f
			if seconds := float64(leastRequests) / f; !p.question.Load.DurationSet && seconds > at.Duration.Seconds() {
				at.Duration = time.Duration(seconds * float64(time.Second)).Round(time.Second)
			}
		}
		measured, err := p.measure(ctx, at, plan.Size, fmt.Sprintf("%.3g requests/s", f))
		if err != nil {
			return nil, err
		}
		measured.Rate = f
		rates, figures = append(rates, f), append(figures, measured)
		if share == 1 {
			planned = measured
		}
	}
	sweep := search.NewSweep(rates)
	for i := range figures {
		sweep.Done(search.Step{Rate: figures[i].Rate, Summary: &figures[i].Summary})
	}
	target, err := p.cluster(plan.Size).Describe(ctx)
	if err != nil {
		return nil, err
	}
	spec := p.question.Cluster.Spec()
	lines := load.Workload.Describe(workload.Params{Rate: rate, Duration: load.Duration, VocabularySize: spec.VocabSize, ContextTokens: spec.ContextTokens})
	r := report.New(began, target, append(lines, fmt.Sprintf("planned: %s at %.4g requests/s (%s)", plan.Size, rate, plan.Reason)))
	r.SetSearch(sweep.Result(), figures)
	r.Figures, r.Planned = planned, &planned.Rate
	return r, nil
}
