package reporttest

import (
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// SLO of the reports.
var SLO = measure.SLO{Terms: []measure.Term{
	{Latency: "ttft", Percentile: 99, Bound: 500 * time.Millisecond},
	{Latency: "tpot", Percentile: 99, Bound: 30 * time.Millisecond},
}}

// Figures summarizes and explains a run.
func Figures(run *record.Run) report.Figures {
	summary := measure.Summarize(run, measure.Options{SLO: SLO})
	return report.NewFigures(run, summary, tail.Explain(run, summary))
}

// New returns a report without figures.
func New(name string) *report.Report {
	target := client.Description{Kind: "tandem", Address: "127.0.0.1:9000", Model: "bench-200m", VocabularySize: 32000, ContextTokens: 4096}
	r := report.New(began, target, []string{"poisson arrivals, seed 1", "prompts of 64 to 464 tokens, outputs of 4 to 32"})
	r.Name, r.Version = name, "devel"
	r.Command = []string{"bench", "serve", "--addr", "127.0.0.1:9000", "--slo", SLO.String(), "--sweep", "2,4,8"}
	return r
}

// Single returns a report of one run.
func Single(name string, s Server, rate float64, duration time.Duration) *report.Report {
	r := New(name)
	r.SetRun(Figures(Run(s, rate, duration, 1)))
	return r
}

// Sweep returns a report of runs at rising rates. The first that is not stable is the
// breaking point, the second rate the knee.
func Sweep(name string, s Server, rates []float64, duration time.Duration) *report.Report {
	r := New(name)
	var result search.Result
	var runs []report.Figures
	for i, rate := range rates {
		f := Figures(Run(s, rate, duration, uint64(i)))
		step := search.Step{Rate: rate, Summary: &f.Summary, Passed: f.Verdict == measure.Stable}
		for _, o := range f.Objectives {
			if !o.Met {
				step.Passed, step.Why = false, o.Term+" was not met"
			}
		}
		if f.Verdict != measure.Stable {
			step.Why = "the server is " + string(f.Verdict)
			if result.Breaking == nil {
				result.Breaking = &rates[i]
			}
		}
		if step.Passed {
			result.MaxRate = &rates[i]
		}
		result.Steps = append(result.Steps, step)
		runs = append(runs, f)
	}
	if len(rates) > 1 {
		result.Knee = &rates[1]
	}
	r.SetSearch(result, runs)
	return r
}
