// Package compare says what changed between two reports of a benchmark, and which of
// it is more than chance. What decides is the median and p99 of TTFT, ITL, TPOT and
// E2E, goodput, attainment, the highest rate, a verdict that turned, and a rate that
// fell to 0.
//
// Anything may import it. It starts no goroutines, reads no clock and writes only to
// the writers that it is given.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
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
	// Changes are all figures that one of both has.
	Changes []Change `json:"changes"`
	// Regressions and Improvements count the significant changes of primary figures,
	// Others those of the rest.
	Regressions  int `json:"regressions"`
	Improvements int `json:"improvements"`
	Others       int `json:"other_changes"`
	// Demand is how many times as wide as at 95% each interval is taken, so that all
	// comparisons of primary figures together are hardly ever wrong by chance.
	Demand float64 `json:"interval_factor"`

	// cutShort: the user ended B early.
	cutShort bool
}

// Change is one figure of the reports.
type Change struct {
	// Figure is its key in a report: "ttft_ms.p99".
	Figure string `json:"figure"`
	// Rate is of the step of a search that it belongs to, 0: the report's own figures.
	Rate float64 `json:"rate,omitempty"`
	// Primary figures decide whether there is a regression: the median and p99 of TTFT,
	// ITL, TPOT and E2E, goodput and attainment, the highest rate, and a verdict that
	// turned.
	// Primary is also a rate that fell to 0.
	Primary bool    `json:"primary,omitempty"`
	A       float64 `json:"a"`
	B       float64 `json:"b"`
	// CIs are the 95% confidence intervals, nil if there is none.
	ACI *[2]float64 `json:"a_ci,omitempty"`
	BCI *[2]float64 `json:"b_ci,omitempty"`
	// Percent is the change relative to A, nil if A is 0.
	Percent *float64 `json:"percent"`
	// Words are of figures that are none, such as verdicts; A and B are then 0. Of one
	// that only one report has they say so; the other's is then 0.
	Words string `json:"words,omitempty"`
	// Only is "a" or "b" if only that report has the figure, otherwise empty.
	Only string `json:"only,omitempty"`
	// Verdict says what the change is worth.
	Verdict Verdict `json:"verdict"`

	better direction
	// gone: a rate that fell to 0, and not by chance.
	gone bool
}

// Verdict says what a change is worth.
type Verdict string

// The verdicts. A change is significant if it is above the threshold and the
// confidence intervals do not overlap, each widened to what makes all comparisons of
// primary figures together right with 95% (C. E. Bonferroni, 1936): a sweep compares
// some hundred figures, and of so many one differs by chance.
const (
	Same        Verdict = "same"
	Regression  Verdict = "regression"
	Improvement Verdict = "improvement"
	// Worse and Better: a significant change of a figure that is not primary.
	Worse  Verdict = "worse"
	Better Verdict = "better"
	// Unknown: one of the two has no interval.
	Unknown Verdict = "unknown"
	// Missing: one of the two has no such figure.
	Missing Verdict = "missing"
)

// primary are the figures that decide.
var primary = map[string]bool{
	"ttft_ms.p50": true, "ttft_ms.p99": true, "itl_ms.p50": true, "itl_ms.p99": true,
	"tpot_ms.p50": true, "tpot_ms.p99": true, "e2e_ms.p50": true, "e2e_ms.p99": true,
	"goodput_rps": true, "slo_attainment": true, "max_rps": true, "verdict": true,
}

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
	c.cutShort = b.Interrupted
	if a.Search == nil || b.Search == nil {
		c.figures(0, a.Figures, b.Figures)
	} else {
		c.searches(a, b)
	}
	c.decide()
	return c
}

// decide judges the changes that are not judged yet, now that it is known how many
// there are, and counts.
func (c *Comparison) decide() {
	comparisons := 0
	for i := range c.Changes {
		change := &c.Changes[i]
		change.Primary = primary[change.Figure] || change.gone
		if change.Primary && change.ACI != nil && change.BCI != nil {
			comparisons++
		}
	}
	c.Demand = demand(comparisons)
	for i := range c.Changes {
		change := &c.Changes[i]
		if change.Verdict == "" {
			change.Verdict = c.verdict(change)
		}
		switch {
		case change.Verdict == Regression && change.Primary:
			c.Regressions++
		case change.Verdict == Improvement && change.Primary:
			c.Improvements++
		case change.Verdict == Regression:
			change.Verdict = Worse
			c.Others++
		case change.Verdict == Improvement:
			change.Verdict = Better
			c.Others++
		}
	}
}

// demand is how many times wider than for one comparison with 95% the intervals have
// to be for n of them.
func demand(n int) float64 {
	quantile := func(n int) float64 { return math.Sqrt2 * math.Erfinv(1-0.05/float64(n)) }
	return quantile(max(n, 1)) / quantile(1)
}

// apart is whether two values' intervals do not overlap, each a factor wider.
func apart(a, b float64, aCI, bCI [2]float64, factor float64) bool {
	return a+factor*(aCI[1]-a) < b-factor*(b-bCI[0]) || b+factor*(bCI[1]-b) < a-factor*(a-aCI[0])
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
		c.maxima(from, to)
	case from.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", A: *from.MaxRate, Words: "no rate passes now", Verdict: told(to, Regression)})
	case to.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", B: *to.MaxRate, Words: "no rate passed before", Verdict: told(from, Improvement)})
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
	slices.SortStableFunc(c.Changes, func(x, y Change) int { return cmp.Compare(x.Rate, y.Rate) })
	if len(seen) == 0 && len(a.Runs) > 0 && len(b.Runs) > 0 {
		c.Warnings = append(c.Warnings, "no rate was tried in both; compare two sweeps over the same rates for more than the maxima")
	}
}

const (
	// leastTolerance is how near to the highest rate a search comes that did not say
	// how near it came.
	leastTolerance = 0.05
	// tolerances is how many times that far apart two such rates have to be: chance
	// decides where a search ends, and its bracket is no confidence interval.
	tolerances = 3
)

// maxima compares the highest rates that two searches found.
func (c *Comparison) maxima(from, to *search.Result) {
	tolerance := leastTolerance
	for _, r := range []*search.Result{from, to} {
		if r.Bracket != nil && r.Bracket[0] > 0 {
			tolerance = max(tolerance, r.Bracket[1]/r.Bracket[0]-1)
		}
	}
	change := relative(Change{Figure: "max_rps", A: *from.MaxRate, B: *to.MaxRate})
	ratio := max(change.B/change.A, change.A/change.B)
	switch {
	case ratio <= 1+c.Threshold:
		change.Verdict = Same
	case ratio <= 1+tolerances*tolerance:
		change.Verdict = Unknown
	case change.B > change.A:
		change.Verdict = told(from, Improvement)
	default:
		change.Verdict = told(to, Regression)
	}
	c.Changes = append(c.Changes, change)
}

// told is the verdict on a search that found less than another, unknown if it says
// itself that there may be more.
func told(less *search.Result, verdict Verdict) Verdict {
	if less.Limited != "" {
		return Unknown
	}
	return verdict
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
		case a.Verdict == measure.Stable && b.Verdict == measure.Overloaded && turned(&a.Summary, &b.Summary):
			change.Verdict = Regression
		case a.Verdict == measure.Overloaded && b.Verdict == measure.Stable && turned(&b.Summary, &a.Summary):
			change.Verdict = Improvement
		}
		c.Changes = append(c.Changes, change)
	}
	before := a.Distributions()
	for i, d := range b.Distributions() {
		was := before[i]
		// The generator's own lateness is no property of the server.
		if d.Latency == measure.DispatchDelay {
			continue
		}
		for _, p := range append(measure.Percentiles(), "max") {
			change := Change{Figure: string(d.Latency) + "." + p, Rate: rate}
			x, y := was.Percentile(p), d.Percentile(p)
			if x != nil {
				change.A, change.ACI = *x, interval(was.CI, p)
			}
			if y != nil {
				change.B, change.BCI = *y, interval(d.CI, p)
			}
			switch {
			case x == nil && y == nil:
				continue
			case y == nil:
				change.Only, change.Words, change.Verdict = "a", "after has none", Missing
			case x == nil:
				change.Only, change.Words, change.Verdict = "b", "before has none", Missing
			}
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
			gone: f.of(&b.Summary) == 0 && f.of(&a.Summary) > 0 && c.nothingCame(&a.Summary, &b.Summary, f.figure),
		}, higher)
	}
}

// fewest is how many requests a rate has to be made of before none at all is no
// chance: of two equal Poisson counts one has eight and the other none once in 256
// times.
const fewest = 8

// nothingCame is whether a rate fell to 0 for another reason than chance, or than
// that the user ended the run before anything was known.
func (c *Comparison) nothingCame(a, b *measure.Summary, figure string) bool {
	if c.cutShort && b.Completed+b.Rejected+b.Errors+b.TimedOut == 0 {
		return false
	}
	requests := float64(a.Completed)
	if (figure == "goodput_rps" || figure == "slo_attainment") && a.CompletedRPS > 0 {
		requests *= min(a.Goodput/a.CompletedRPS, 1)
	}
	return a.Completed == 0 || requests >= fewest // 0: a report that does not say
}

// turned is whether a server that kept up and one that did not differ by more than
// chance: close to its capacity one server does now this, now that. Their backlogs'
// slopes say so, unless requests were not served, which is no chance.
func turned(stable, overloaded *measure.Summary) bool {
	slope := [2]float64{}
	if stable.BacklogSlopeCI == slope || overloaded.BacklogSlopeCI == slope {
		return true
	}
	const some = 0.01
	refused := overloaded.Rejected + overloaded.Errors + overloaded.TimedOut + overloaded.Unsent + overloaded.Cancelled
	if float64(refused) > some*float64(overloaded.Requests) {
		return true
	}
	return apart(stable.BacklogSlope, overloaded.BacklogSlope, stable.BacklogSlopeCI, overloaded.BacklogSlopeCI, slopeDemand)
}

// slopeDemand is how many times wider the intervals of slopes are taken: as for some
// forty comparisons, since a sweep has about ten steps with four figures each.
const slopeDemand = 1.65

func interval(of map[string][2]float64, name string) *[2]float64 {
	if ci, ok := of[name]; ok {
		return &ci
	}
	return nil
}

// add keeps a change, to be judged when all are known.
func (c *Comparison) add(change Change, better direction) {
	change.better = better
	c.Changes = append(c.Changes, relative(change))
}

// relative fills in the change in percent.
func relative(change Change) Change {
	if change.A != 0 && change.Only == "" {
		change.Percent = new(100 * (change.B - change.A) / change.A)
	}
	return change
}

func (c *Comparison) verdict(change *Change) Verdict {
	delta := change.B - change.A
	floor := 0.0
	if change.better == lower {
		floor = floorMs
	}
	switch {
	case math.Abs(delta) <= c.Threshold*change.A || math.Abs(delta) <= floor:
		return Same
	case change.gone:
		return Regression
	case change.ACI == nil || change.BCI == nil:
		return Unknown
	case !apart(change.A, change.B, *change.ACI, *change.BCI, c.Demand):
		return Same
	case (delta > 0) == bool(change.better):
		return Improvement
	default:
		return Regression
	}
}
