package report

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/measure"
)

// possible is an error that names the first figure which nothing can measure: a count,
// rate or latency below 0, a share above 1, or an interval that ends before it begins.
// What is shown of such a report, or compared with it, would be wrong without a word.
func possible(r *Report) error {
	var c checker
	c.figures("", &r.Figures)
	for i := range r.Runs {
		c.figures(fmt.Sprintf("runs[%d].", i), &r.Runs[i])
	}
	if s := r.Search; s != nil {
		for _, found := range []struct {
			name string
			rate *float64
		}{{"max_rps", s.MaxRate}, {"knee_rps", s.Knee}, {"breaking_rps", s.Breaking}, {"max_goodput_rps", s.MaxGoodput}} {
			if found.rate != nil {
				c.least("search."+found.name, *found.rate)
			}
		}
		if s.Bracket != nil {
			c.interval("search.bracket_rps", *s.Bracket)
		}
		for i, step := range s.Steps {
			at := fmt.Sprintf("search.steps[%d].", i)
			c.least(at+"rate", step.Rate)
			if step.Summary != nil {
				c.summary(at+"summary.", step.Summary)
			}
		}
	}
	return c.err
}

// checker keeps the first error.
type checker struct{ err error }

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// least refuses what is below 0 or no number.
func (c *checker) least(name string, v float64) {
	if !(v >= 0) || math.IsInf(v, 0) {
		c.fail("%s is %v, and it cannot be below 0", name, v)
	}
}

func (c *checker) interval(name string, ci [2]float64) {
	if !(ci[0] <= ci[1]) {
		c.fail("%s is [%v, %v]: an interval cannot end before it begins", name, ci[0], ci[1])
	}
}

func (c *checker) figures(at string, f *Figures) {
	c.least(at+"rate", f.Rate)
	c.least(at+"concurrency", float64(f.Concurrency))
	c.least(at+"window_s", f.WindowS)
	c.least(at+"warmup_s", f.WarmupS)
	c.summary(at, &f.Summary)
}

func (c *checker) summary(at string, s *measure.Summary) {
	for _, v := range []struct {
		name string
		v    float64
	}{
		{"requests", float64(s.Requests)},
		{"completed", float64(s.Completed)},
		{"rejected", float64(s.Rejected)},
		{"errors", float64(s.Errors)},
		{"timed_out", float64(s.TimedOut)},
		{"cancelled", float64(s.Cancelled)},
		{"unsent", float64(s.Unsent)},
		{"offered_rps", s.OfferedRPS},
		{"completed_rps", s.CompletedRPS},
		{"prompt_tokens_per_s", s.PromptTokensPerS},
		{"output_tokens_per_s", s.OutputTokensPerS},
		{"goodput_rps", s.Goodput},
		{"slo_attainment", s.SLOAttainment},
		{"slo_attainment_admitted", s.SLOAttainmentAdmitted},
		{"slo_attainment_completed", s.SLOAttainmentCompleted},
	} {
		c.least(at+v.name, v.v)
	}
	if s.SLOAttainment > 1 || s.SLOAttainmentAdmitted > 1 || s.SLOAttainmentCompleted > 1 {
		c.fail("%sslo_attainment is above 1, and it is a share", at)
	}
	for _, name := range slices.Sorted(maps.Keys(s.RateCI)) {
		c.interval(at+"rate_ci."+name, s.RateCI[name])
	}
	c.interval(at+"backlog_slope_ci_rps", s.BacklogSlopeCI)
	for _, d := range s.Distributions() {
		if d.Distribution != nil {
			c.distribution(at+string(d.Latency), d.Distribution)
		}
	}
	for i, o := range s.Objectives {
		if o.Measured != nil {
			c.least(fmt.Sprintf("%sobjectives[%d].measured_ms", at, i), *o.Measured)
		}
		if o.CI != nil {
			c.interval(fmt.Sprintf("%sobjectives[%d].ci_ms", at, i), *o.CI)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Classes)) {
		if class := s.Classes[name]; class != nil {
			c.summary(at+"classes."+name+".", class)
		}
	}
}

func (c *checker) distribution(at string, d *measure.Distribution) {
	c.least(at+".count", float64(d.Count))
	c.least(at+".mean", d.Mean)
	for _, p := range append(measure.Percentiles(), "max") {
		if v := d.Percentile(p); v != nil {
			c.least(at+"."+p, *v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.CI)) {
		c.least(at+".ci."+name, d.CI[name][0])
		c.interval(at+".ci."+name, d.CI[name])
	}
}
