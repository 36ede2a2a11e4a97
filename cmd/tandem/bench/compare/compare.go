// Package compare says what changed between two reports of a benchmark, and which of
// it is more than chance.
//
// cmd/tandem imports it. It starts no goroutines, reads no clock and writes only to
// the writers that it is given.
package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/measure"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/report"
)

// Schema is the version of a Comparison's JSON.
const Schema = "tandem.bench.compare/1.0"

// Options say what counts.
type Options struct {
	// Threshold is the relative change below which nothing counts, however sure it
	// is; 0: 0.05.
	Threshold float64
}

// DefaultThreshold is a change of a twentieth.
const DefaultThreshold = 0.05

// Comparison is what changed from report A to report B. Its JSON is public: keys are
// only added.
type Comparison struct {
	Schema string `json:"schema"`
	// A and B are the reports' names, or the commands that made them.
	A         string  `json:"a"`
	B         string  `json:"b"`
	Threshold float64 `json:"threshold"`
	// Warnings are reasons for which the reports may not be comparable.
	Warnings []string `json:"warnings,omitempty"`
	// Changes are all figures that both have.
	Changes []Change `json:"changes"`
	// Regressions and Improvements count the significant changes.
	Regressions  int `json:"regressions"`
	Improvements int `json:"improvements"`
}

// Change is one figure in both reports.
type Change struct {
	// Figure is its key in a report: "ttft_ms.p99".
	Figure string `json:"figure"`
	// Rate is of the step of a search that it belongs to, 0: the report's own figures.
	Rate float64 `json:"rate,omitempty"`
	A    float64 `json:"a"`
	B    float64 `json:"b"`
	// CIs are the 95% confidence intervals, nil if there is none.
	ACI *[2]float64 `json:"a_ci,omitempty"`
	BCI *[2]float64 `json:"b_ci,omitempty"`
	// Percent is the change relative to A, nil if A is 0.
	Percent *float64 `json:"percent"`
	// Words are of figures that are none, such as verdicts; A and B are then 0.
	Words string `json:"words,omitempty"`
	// Verdict says what the change is worth.
	Verdict Verdict `json:"verdict"`
}

// Verdict says what a change is worth.
type Verdict string

// The verdicts. A change is significant if the confidence intervals do not overlap
// and it is above the threshold. Two intervals of 95% that do not overlap happen to
// equal servers in about one of 150 comparisons.
const (
	Same        Verdict = "same"
	Regression  Verdict = "regression"
	Improvement Verdict = "improvement"
	// Unknown: one of the two has no interval.
	Unknown Verdict = "unknown"
)

// floorMs is what latencies may differ by before it means anything: clocks and
// histograms tell no less apart.
const floorMs = 0.01

// Reports compares b with a, the one before. Neither may be nil.
func Reports(a, b *report.Report, options Options) *Comparison {
	c := &Comparison{Schema: Schema, A: name(a), B: name(b), Threshold: options.Threshold}
	if !(c.Threshold > 0) {
		c.Threshold = DefaultThreshold
	}
	c.Warnings = warnings(a, b)
	if a.Search == nil || b.Search == nil {
		c.figures(0, a.Figures, b.Figures)
	} else {
		c.searches(a, b)
	}
	for _, change := range c.Changes {
		switch change.Verdict {
		case Regression:
			c.Regressions++
		case Improvement:
			c.Improvements++
		default:
		}
	}
	return c
}

func name(r *report.Report) string {
	if r.Name != "" {
		return r.Name
	}
	return strings.Join(r.Command, " ")
}

// searches compares the rates that were found and the steps at equal rates.
func (c *Comparison) searches(a, b *report.Report) {
	from, to := a.Search, b.Search
	switch {
	case from.MaxRate != nil && to.MaxRate != nil:
		c.add(Change{Figure: "max_rps", A: *from.MaxRate, B: *to.MaxRate, ACI: from.Bracket, BCI: to.Bracket}, higher)
	case from.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", A: *from.MaxRate, Words: "no rate passes now", Verdict: Regression})
	case to.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", B: *to.MaxRate, Words: "no rate passed before", Verdict: Improvement})
	}
	for _, pair := range []struct {
		figure string
		a, b   *float64
	}{{"knee_rps", from.Knee, to.Knee}, {"breaking_rps", from.Breaking, to.Breaking}, {"max_goodput_rps", from.MaxGoodput, to.MaxGoodput}} {
		if pair.a != nil && pair.b != nil {
			c.add(Change{Figure: pair.figure, A: *pair.a, B: *pair.b}, higher)
		}
	}
	// Of repeated steps the last counts on both sides.
	last := map[float64]report.Figures{}
	for _, f := range a.Runs {
		last[f.Rate] = f
	}
	seen := map[float64]bool{}
	for i, f := range slices.Backward(b.Runs) {
		if before, ok := last[f.Rate]; ok && !seen[f.Rate] {
			seen[f.Rate] = true
			c.figures(f.Rate, before, b.Runs[i])
		}
	}
	slices.SortStableFunc(c.Changes, func(x, y Change) int {
		switch {
		case x.Rate < y.Rate:
			return -1
		case x.Rate > y.Rate:
			return 1
		}
		return 0
	})
	if len(seen) == 0 && len(a.Runs) > 0 && len(b.Runs) > 0 {
		c.Warnings = append(c.Warnings, "no rate was tried in both; compare two sweeps over the same rates for more than the maxima")
	}
}

// direction says which way is better.
type direction bool

const (
	lower  direction = false
	higher direction = true
)

// figures compares two runs. Latencies are better if lower, rates if higher.
func (c *Comparison) figures(rate float64, a, b report.Figures) {
	if a.Verdict != b.Verdict && a.Verdict != measure.None && b.Verdict != measure.None && a.Verdict != "" && b.Verdict != "" {
		change := Change{Figure: "verdict", Rate: rate, Words: fmt.Sprintf("%s, before %s", b.Verdict, a.Verdict), Verdict: Unknown}
		switch {
		case a.Verdict == measure.Stable && b.Verdict == measure.Overloaded:
			change.Verdict = Regression
		case a.Verdict == measure.Overloaded && b.Verdict == measure.Stable:
			change.Verdict = Improvement
		}
		c.Changes = append(c.Changes, change)
	}
	before := a.Distributions()
	for i, d := range b.Distributions() {
		was := before[i]
		// The generator's own lateness is no property of the server.
		if d.Latency == measure.DispatchDelay || d.Distribution == nil || was.Distribution == nil {
			continue
		}
		for _, p := range append(measure.Percentiles(), "max") {
			x, y := was.Percentile(p), d.Percentile(p)
			if x == nil || y == nil {
				continue
			}
			change := Change{Figure: string(d.Latency) + "." + p, Rate: rate, A: *x, B: *y, ACI: interval(was.CI, p), BCI: interval(d.CI, p)}
			c.add(change, lower)
		}
	}
	for _, f := range []struct {
		figure string
		of     func(*measure.Summary) float64
	}{
		{"completed_rps", func(s *measure.Summary) float64 { return s.CompletedRPS }},
		{"output_tokens_per_s", func(s *measure.Summary) float64 { return s.OutputTokensPerS }},
		{"goodput_rps", func(s *measure.Summary) float64 { return s.Goodput }},
		{"slo_attainment", func(s *measure.Summary) float64 { return s.SLOAttainment }},
	} {
		c.add(Change{
			Figure: f.figure, Rate: rate, A: f.of(&a.Summary), B: f.of(&b.Summary),
			ACI: interval(a.RateCI, f.figure), BCI: interval(b.RateCI, f.figure),
		}, higher)
	}
}

func interval(of map[string][2]float64, name string) *[2]float64 {
	if ci, ok := of[name]; ok {
		return &ci
	}
	return nil
}

// add judges a change and keeps it.
func (c *Comparison) add(change Change, better direction) {
	delta := change.B - change.A
	floor := 0.0
	if better == lower {
		floor = floorMs
	}
	if change.A != 0 {
		percent := 100 * delta / change.A
		change.Percent = &percent
	}
	small := abs(delta) <= c.Threshold*change.A || abs(delta) <= floor
	switch {
	case small:
		change.Verdict = Same
	case change.ACI == nil || change.BCI == nil:
		change.Verdict = Unknown
	case change.ACI[0] <= change.BCI[1] && change.BCI[0] <= change.ACI[1]:
		change.Verdict = Same
	case (delta > 0) == bool(better):
		change.Verdict = Improvement
	default:
		change.Verdict = Regression
	}
	c.Changes = append(c.Changes, change)
}

func abs(v float64) float64 { return max(v, -v) }
