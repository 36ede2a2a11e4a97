package contenders

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// Document is the result as JSON has it. Each list but Steps is by contender, in the order
// in which they were given.
type Document struct {
	Schema  string           `json:"schema"`
	Reports []*report.Report `json:"reports"`
	// Steps in the order in which they were measured.
	Steps []Step `json:"steps"`
	// CapacityRPS as estimated in closed loop; nil if the rates were given.
	CapacityRPS []float64 `json:"capacity_rps,omitempty"`
	Interrupted bool      `json:"interrupted,omitempty"`
}

// schema is the version of the JSON.
const schema = "tandem.bench.pair/1.1"

// Document is the result as JSON has it.
func (r *Result) Document() Document {
	d := Document{Schema: schema, Steps: r.Steps, CapacityRPS: r.Capacity, Interrupted: r.Interrupted}
	for _, outcome := range r.Outcomes {
		d.Reports = append(d.Reports, outcome.Report)
	}
	return d
}

// WriteHTML writes outcomes, whose names differ, as one page with the plots of all.
func WriteHTML(w io.Writer, outcomes []*loadtest.Outcome) error {
	var all []report.Named
	var names []string
	for _, outcome := range outcomes {
		all = append(all, report.Named{Name: outcome.Report.Name, Report: outcome.Report})
		names = append(names, outcome.Report.Name)
	}
	return report.WriteComparisonHTML(w, strings.Join(names, ", "), all)
}

// WriteMarkdown writes the tables of all: latency at each rate, where the time
// went at p50 and p99, and what each part used of the machine.
func (r *Result) WriteMarkdown(w io.Writer) error {
	var text strings.Builder
	r.machine(&text)
	r.latencies(&text)
	r.budgets(&text)
	r.processors(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

// machine says on what, with what and of what.
func (r *Result) machine(out *strings.Builder) {
	one := r.Outcomes[0].Report
	WriteMachine(out, one)
	for _, line := range one.Workload {
		fmt.Fprintf(out, "- %s\n", line)
	}
	var capacities []string
	for i, capacity := range r.Capacity {
		capacities = append(capacities, fmt.Sprintf("%s %.3g", r.name(i), capacity))
	}
	if capacities != nil {
		fmt.Fprintf(out, "- completed with 64 requests kept running: %s requests a second\n", strings.Join(capacities, ", "))
	}
	out.WriteString("\n")
}

// WriteMachine says when, where and by what command a report was made.
func WriteMachine(w io.Writer, r *report.Report) {
	fmt.Fprintf(w, "Measured %s on %s, %d cores, %s, by tandem %s:\n\n", r.Began.UTC().Format("2006-01-02"), r.Host.CPU, r.Host.Cores, r.Host.OS, r.Version)
	fmt.Fprintf(w, "    tandem %s\n\n", strings.Join(r.Command, " "))
}

func (r *Result) name(side int) string { return r.Outcomes[side].Report.Name }

// Rates are those of the steps, rising, each once.
func (r *Result) Rates() []float64 {
	var rates []float64
	for _, step := range r.Steps {
		rates = append(rates, step.Rate)
	}
	slices.Sort(rates)
	return slices.Compact(rates)
}

// at are the figures of a contender at a rate, of all rounds.
func (r *Result) at(side int, rate float64) []*report.Figures {
	var figures []*report.Figures
	for i := range r.Steps {
		if r.Steps[i].Rate == rate {
			figures = append(figures, &r.Steps[i].Figures[side])
		}
	}
	return figures
}

// latencies is a row for each rate and contender. Of several rounds it has the median.
func (r *Result) latencies(out *strings.Builder) {
	out.WriteString("| requests/s | | TTFT p50 | p99 | second token p50 | p99 | TPOT p50 | p99 | completed/s | goodput/s | verdict |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, rate := range r.Rates() {
		for side := range r.Outcomes {
			figures := r.at(side, rate)
			p := func(of func(*report.Figures) *measure.Distribution, percentile string) string {
				var values []float64
				for _, f := range figures {
					if value := of(f).Percentile(percentile); value != nil {
						values = append(values, *value)
					}
				}
				if len(values) == 0 {
					return "n/a"
				}
				return milliseconds(stats.Median(values))
			}
			median := func(of func(*report.Figures) float64) string {
				var values []float64
				for _, f := range figures {
					values = append(values, of(f))
				}
				return fmt.Sprintf("%.3g", stats.Median(values))
			}
			ttft := func(f *report.Figures) *measure.Distribution { return f.TTFT }
			second := func(f *report.Figures) *measure.Distribution { return f.SecondToken }
			tpot := func(f *report.Figures) *measure.Distribution { return f.TPOT }
			var verdicts []string
			for _, f := range figures {
				verdicts = append(verdicts, string(f.Verdict))
			}
			slices.Sort(verdicts)
			fmt.Fprintf(out, "| %.3g | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", rate, r.name(side),
				p(ttft, "p50"), p(ttft, "p99"), p(second, "p50"), p(second, "p99"), p(tpot, "p50"), p(tpot, "p99"),
				median(func(f *report.Figures) float64 { return f.CompletedRPS }),
				median(func(f *report.Figures) float64 { return f.Goodput }),
				strings.Join(slices.Compact(verdicts), ", "))
		}
	}
	out.WriteString("\nMilliseconds; TTFT is counted from when a request was due.\n\n")
}

func milliseconds(ms float64) string {
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.2f", ms)
}

// budgets is where the time of E2E went, a row for each rate, contender and percentile.
func (r *Result) budgets(out *strings.Builder) {
	stages := tail.Stages()
	out.WriteString("| requests/s | | E2E |")
	for _, stage := range stages {
		fmt.Fprintf(out, " %s |", strings.ReplaceAll(string(stage), "_", " "))
	}
	out.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(stages)) + "\n")
	for _, rate := range r.Rates() {
		for side := range r.Outcomes {
			figures := r.at(side, rate)
			explained := figures[len(figures)-1].Tail
			if explained == nil {
				continue
			}
			for _, b := range explained.Breakdowns {
				if b.Latency != measure.E2E || b.Percentile != "p50" && b.Percentile != "p99" {
					continue
				}
				fmt.Fprintf(out, "| %.3g | %s | %s %s |", rate, r.name(side), b.Percentile, milliseconds(b.Milliseconds))
				for _, stage := range stages {
					fmt.Fprintf(out, " %s |", milliseconds(b.Stages[stage]))
				}
				out.WriteString("\n")
			}
		}
	}
	out.WriteString("\nMilliseconds; the stages of a row add up to its E2E. Of several rounds the last.\n\n")
}

// processors is what each part used of a core, in the last round.
func (r *Result) processors(out *strings.Builder) {
	for side := range r.Outcomes {
		var parts []string
		fmt.Fprintf(out, "| %s: cores used |", r.name(side))
		for i, rate := range r.Rates() {
			step := r.lastAt(rate)
			if i == 0 {
				parts = slices.Sorted(maps.Keys(step.CPUSeconds[side]))
				for _, part := range parts {
					fmt.Fprintf(out, " %s |", part)
				}
				out.WriteString(" client |\n|---|" + strings.Repeat("---|", len(parts)+1) + "\n")
			}
			f := step.Figures[side]
			fmt.Fprintf(out, "| at %.3g requests/s |", rate)
			for _, part := range parts {
				fmt.Fprintf(out, " %.2f |", step.CPUSeconds[side][part]/step.Seconds[side])
			}
			fmt.Fprintf(out, " %.2f |\n", f.Client.CPUSeconds/step.Seconds[side])
		}
		out.WriteString("\n")
	}
}

func (r *Result) lastAt(rate float64) *Step {
	for i := range slices.Backward(r.Steps) {
		if r.Steps[i].Rate == rate {
			return &r.Steps[i]
		}
	}
	return nil
}
