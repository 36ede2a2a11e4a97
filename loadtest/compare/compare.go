// Package compare reports what changed between two benchmark reports and which changes
// are significant. The primary figures are the median and p99 of TTFT, ITL, TPOT and E2E,
// goodput, attainment, the highest rate, a changed verdict, and a rate that fell to 0.
//
// Anything may import it. It starts no goroutines, reads no clock and writes only to the
// given writers.
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

// Options configure a comparison.
type Options struct {
	// Threshold is the relative change below which no change is significant; 0: 0.05.
	Threshold float64
}

// DefaultThreshold is 5%.
const DefaultThreshold = 0.05

// Comparison is the changes from report A to report B. Its JSON is public: keys are only
// added.
type Comparison struct {
	Schema string `json:"schema"`
	// A and B are the reports' names or commands.
	A         string  `json:"a"`
	B         string  `json:"b"`
	Threshold float64 `json:"threshold"`
	// Warnings are reasons why the reports may not be comparable.
	Warnings []string `json:"warnings,omitempty"`
	// Changes are the figures in either report.
	Changes []Change `json:"changes"`
	// Regressions and Improvements count significant changes of primary figures, Others
	// those of the rest.
	Regressions  int `json:"regressions"`
	Improvements int `json:"improvements"`
	Others       int `json:"other_changes"`
	// Demand is the factor by which 95% intervals are widened so that all comparisons of
	// primary figures together are right with 95% confidence.
	Demand float64 `json:"interval_factor"`

	// cutShort: the user interrupted B.
	cutShort bool
}

// Change is the change of one figure.
type Change struct {
	// Figure is its key in a report: "ttft_ms.p99".
	Figure string `json:"figure"`
	// Rate of the search step; 0: the report's own figures.
	Rate float64 `json:"rate,omitempty"`
	// Primary figures decide whether there is a regression; see the package comment.
	Primary bool    `json:"primary,omitempty"`
	A       float64 `json:"a"`
	B       float64 `json:"b"`
	// ACI and BCI are the 95% confidence intervals, nil if unknown.
	ACI *[2]float64 `json:"a_ci,omitempty"`
	BCI *[2]float64 `json:"b_ci,omitempty"`
	// Percent is the change relative to A, nil if A is 0.
	Percent *float64 `json:"percent"`
	// Words replace A and B, which are then 0, for nonnumeric figures such as verdicts,
	// and for a figure that only one report has in words.
	Words string `json:"words,omitempty"`
	// Only is "a" or "b" if only that report has the figure.
	Only string `json:"only,omitempty"`
	// Verdict on the change.
	Verdict Verdict `json:"verdict"`

	better direction
	// gone: a rate fell to 0, and not by chance.
	gone bool
}

// Verdict classifies a change.
type Verdict string

// Verdicts. A change is significant if it exceeds the threshold and the confidence
// intervals do not overlap. The intervals are widened so that all comparisons of primary
// figures together are right with 95% confidence (C. E. Bonferroni, 1936), since a sweep
// compares about a hundred figures.
const (
	Same        Verdict = "same"
	Regression  Verdict = "regression"
	Improvement Verdict = "improvement"
	// Worse and Better: a significant change of a figure that is not primary.
	Worse  Verdict = "worse"
	Better Verdict = "better"
	// Unknown: a confidence interval is missing.
	Unknown Verdict = "unknown"
	// Missing: only one report has the figure.
	Missing Verdict = "missing"
)

// primary figures, by key.
var primary = map[string]bool{
	"ttft_ms.p50": true, "ttft_ms.p99": true, "itl_ms.p50": true, "itl_ms.p99": true,
	"tpot_ms.p50": true, "tpot_ms.p99": true, "e2e_ms.p50": true, "e2e_ms.p99": true,
	"goodput_rps": true, "slo_attainment": true, "max_rps": true, "verdict": true,
}

// floorMs is the resolution of clocks and histograms: smaller latency differences are
// ignored.
const floorMs = 0.01

// Reports compares b with the earlier a. Neither may be nil.
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

// decide judges and counts the changes, once their number is known.
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

// demand is the factor by which 95% intervals must be widened for n comparisons.
func demand(n int) float64 {
	quantile := func(n int) float64 { return math.Sqrt2 * math.Erfinv(1-0.05/float64(n)) }
	return quantile(max(n, 1)) / quantile(1)
}

// apart reports whether two intervals, each widened by a factor, are disjoint.
func apart(a, b float64, aCI, bCI [2]float64, factor float64) bool {
	return a+factor*(aCI[1]-a) < b-factor*(b-bCI[0]) || b+factor*(bCI[1]-b) < a-factor*(a-aCI[0])
}

func name(r *report.Report) string {
	if r.Name != "" {
		return r.Name
	}
	return strings.Join(r.Command, " ")
}

// searches compares the highest rates and the steps at common rates.
func (c *Comparison) searches(a, b *report.Report) {
	from, to := a.Search, b.Search
	switch {
	case from.MaxRate != nil && to.MaxRate != nil:
		c.maxima(from, to)
	case from.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", A: *from.MaxRate, Words: "no rate is held now", Verdict: told(to, *from.MaxRate, Regression)})
	case to.MaxRate != nil:
		c.Changes = append(c.Changes, Change{Figure: "max_rps", B: *to.MaxRate, Words: "no rate was held before", Verdict: told(from, *to.MaxRate, Improvement)})
	}
	for _, pair := range []struct {
		figure string
		a, b   *float64
	}{{"knee_rps", from.Knee, to.Knee}, {"breaking_rps", from.Breaking, to.Breaking}, {"max_goodput_rps", from.MaxGoodput, to.MaxGoodput}} {
		if pair.a != nil && pair.b != nil {
			c.add(Change{Figure: pair.figure, A: *pair.a, B: *pair.b}, higher)
		}
	}
	seen := map[float64]bool{}
	for _, run := range b.Runs {
		before, tried := a.At(run.Rate)
		if !tried || seen[run.Rate] {
			continue
		}
		seen[run.Rate] = true
		now, _ := b.At(run.Rate)
		c.figures(run.Rate, before, now)
	}
	slices.SortStableFunc(c.Changes, func(x, y Change) int { return cmp.Compare(x.Rate, y.Rate) })
	if len(seen) == 0 && len(a.Runs) > 0 && len(b.Runs) > 0 {
		c.Warnings = append(c.Warnings, "no rate was tried in both; compare two sweeps over the same rates for more than the maxima")
	}
}

const (
	// leastTolerance is assumed for searches that do not report their bracket.
	leastTolerance = 0.05
	// tolerances is how many tolerances apart two such rates must be: the end of a search
	// depends on chance, and its bracket is not a confidence interval.
	tolerances = 3
)

// maxima compares the highest rates of two searches.
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
		change.Verdict = told(from, change.B, Improvement)
	default:
		change.Verdict = told(to, change.A, Regression)
	}
	c.Changes = append(c.Changes, change)
}

// told is the verdict on the search with the lower rate. It is Unknown if that search did not
// fail at any rate that the other held, says the server may do more, or contradicts itself.
func told(less *search.Result, held float64, verdict Verdict) Verdict {
	failed := slices.ContainsFunc(less.Steps, func(s search.Step) bool { return !s.Passed && !s.Unknown && s.Rate <= held })
	if less.MaxRate != nil { // else a rate may have failed only in some of its steps
		failed = less.Bracket != nil && less.Bracket[1] <= held
	}
	if !failed || less.Limited != "" || len(less.PassedAbove) > 0 {
		return Unknown
	}
	return verdict
}

// direction is which way is better.
type direction bool

const (
	lower  direction = false
	higher direction = true
)

// figures compares two runs. Lower latencies and higher rates are better.
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
		// The generator's own lateness is not a property of the server.
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

// fewest is how many requests a rate needs for its fall to 0 to be significant: of
// two equal Poisson counts, one is eight and the other 0 once in 256 times.
const fewest = 8

// nothingCame reports whether a rate fell to 0 for a reason other than chance or an early
// interruption.
func (c *Comparison) nothingCame(a, b *measure.Summary, figure string) bool {
	if c.cutShort && b.Completed+b.Rejected+b.Errors+b.TimedOut == 0 {
		return false
	}
	requests := float64(a.Completed)
	if (figure == "goodput_rps" || figure == "slo_attainment") && a.CompletedRPS > 0 {
		requests *= min(a.Goodput/a.CompletedRPS, 1)
	}
	return a.Completed == 0 || requests >= fewest // 0: not in older reports
}

// turned reports whether the change between keeping up and not is significant, since
// close to its capacity a server does either by chance. The slopes of the backlogs
// decide, unless requests were not served.
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

// slopeDemand widens the intervals of slopes as for about forty comparisons: a sweep has
// about ten steps with four figures each.
const slopeDemand = 1.65

func interval(of map[string][2]float64, name string) *[2]float64 {
	if ci, ok := of[name]; ok {
		return &ci
	}
	return nil
}

// add records a change, to be judged by decide.
func (c *Comparison) add(change Change, better direction) {
	change.better = better
	c.Changes = append(c.Changes, relative(change))
}

// relative sets the change in percent.
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
