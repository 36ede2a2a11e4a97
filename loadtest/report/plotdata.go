package report

import (
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// plotData is the input of the page's scripts.
type plotData struct {
	Stages  []tail.Stage `json:"stages"`
	Reports []plotReport `json:"reports"`
}

type plotReport struct {
	Name       string               `json:"name"`
	WindowS    float64              `json:"window_s"`
	WarmupS    float64              `json:"warmup_s"`
	Planned    *float64             `json:"planned"`
	Knee       *float64             `json:"knee"`
	Breaking   *float64             `json:"breaking"`
	Steps      []plotStep           `json:"steps"`
	Bounds     []plotBound          `json:"bounds"`
	Curves     map[string][]CurveXY `json:"curves"`
	Series     []Point              `json:"series"`
	Breakdowns []tail.Breakdown     `json:"breakdowns"`
	Budgets    []plotBudget         `json:"budgets"`
	Slowest    []tail.Waterfall     `json:"slowest"`
}

// plotStep is one rate.
type plotStep struct {
	Rate                float64         `json:"rate"`
	Completed           *float64        `json:"completed"` // nil: no answer ended within the window
	Goodput             *float64        `json:"goodput"`   // likewise
	Attainment          float64         `json:"attainment"`
	AttainmentCompleted float64         `json:"attainment_completed"`
	Passed              bool            `json:"passed"`
	Verdict             string          `json:"verdict"`
	TTFT                plotPercentiles `json:"ttft"`
	TPOT                plotPercentiles `json:"tpot"`
	E2E                 plotPercentiles `json:"e2e"`
}

type plotPercentiles struct {
	P50 *float64 `json:"p50"`
	P90 *float64 `json:"p90"`
	P99 *float64 `json:"p99"`
}

// plotBound is an objective drawn as a line.
type plotBound struct {
	Latency    string  `json:"latency"`
	Percentile string  `json:"percentile"`
	Ms         float64 `json:"ms"`
}

// plotBudget is one rate's breakdowns.
type plotBudget struct {
	Rate       float64          `json:"rate"`
	Breakdowns []tail.Breakdown `json:"breakdowns"`
}

// newPlotData collects the plots' data. Lists are never null in its JSON.
func newPlotData(reports []Named) plotData {
	data := plotData{Stages: tail.Stages(), Reports: []plotReport{}}
	for _, n := range reports {
		r := n.Report
		p := plotReport{
			Name: n.Name, Planned: r.Planned, WindowS: r.WindowS, WarmupS: r.WarmupS, Curves: r.Curves, Series: notNil(r.Series),
			Steps: []plotStep{}, Bounds: bounds(r.Objectives), Budgets: []plotBudget{},
			Breakdowns: []tail.Breakdown{}, Slowest: []tail.Waterfall{},
		}
		if p.Curves == nil {
			p.Curves = map[string][]CurveXY{}
		}
		if r.Tail != nil {
			p.Breakdowns, p.Slowest = notNil(r.Tail.Breakdowns), notNil(r.Tail.Slowest)
		}
		if r.Search != nil {
			p.Knee, p.Breaking = r.Search.Knee, r.Search.Breaking
			for _, s := range r.Search.Steps {
				p.Steps = append(p.Steps, newPlotStep(s.Rate, s.Passed, s.Summary))
			}
		}
		for _, f := range r.Runs {
			if f.Tail != nil {
				p.Budgets = append(p.Budgets, plotBudget{Rate: f.Rate, Breakdowns: notNil(f.Tail.Breakdowns)})
			}
		}
		data.Reports = append(data.Reports, p)
	}
	return data
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func newPlotStep(rate float64, passed bool, s *measure.Summary) plotStep {
	of := func(l measure.Latency) plotPercentiles {
		d := distribution(s, l)
		return plotPercentiles{P50: d.P50, P90: d.P90, P99: d.P99}
	}
	completed, goodput := &s.CompletedRPS, &s.Goodput
	if s.NoneEnded() {
		completed, goodput = nil, nil
	}
	return plotStep{
		Rate: rate, Completed: completed, Goodput: goodput, Attainment: s.SLOAttainment,
		AttainmentCompleted: s.SLOAttainmentCompleted, Passed: passed, Verdict: verdictText(s),
		TTFT: of(measure.TTFT), TPOT: of(measure.TPOT), E2E: of(measure.E2E),
	}
}

// bounds parses objectives such as "ttft:p99<500ms". Those of a class are not drawn.
func bounds(objectives []measure.Objective) []plotBound {
	out := []plotBound{}
	for i := range objectives {
		if t, is := objectives[i].Parsed(); is && objectives[i].Class == "" {
			out = append(out, plotBound{Latency: t.Latency, Percentile: t.Quantile(), Ms: stats.Milliseconds(t.Bound)})
		}
	}
	return out
}
