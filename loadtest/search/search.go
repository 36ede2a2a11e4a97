package search

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// Search chooses the next rate to try and keeps the results. It is not safe for
// concurrent use.
type Search struct {
	plan  plan
	steps []Step
	judge func(Step) (found finding, why string)
}

// plan chooses the next rate from the steps so far.
type plan interface {
	next() (rate float64, ok bool)
	done(rate float64, found finding)
}

// finding is the result of a step.
type finding uint8

const (
	passed finding = iota
	// failed by far, or narrowly and so possibly by chance.
	failed
	failedNarrowly
	// limited: the client was the bottleneck; inconclusive: for another reason.
	limited
	inconclusive
)

// Next is the rate to try, requests per second; ok is false when the search is over. It
// stays the same until Done.
func (s *Search) Next() (rate float64, ok bool) { return s.plan.next() }

// Stretch is how many times longer than usual the step at Next should last: 1, doubled
// for each earlier step at that rate that was too short.
func (s *Search) Stretch() float64 {
	rate, _ := s.Next()
	times := 1.0
	for _, step := range s.steps {
		if step.Rate == rate && step.Unknown && step.Client == "" {
			times *= 2
		}
	}
	return times
}

// Done reports the step at the rate of Next. It reads Rate, Summary, Client and
// Interrupted of step, and judges whether it passed. An interrupted step, or one with a
// nil Summary because it could not run, is inconclusive; Why then says why.
func (s *Search) Done(step Step) {
	var found finding
	found, step.Why = s.judge(step)
	step.Passed, step.Unknown = found == passed, found == limited || found == inconclusive
	s.steps = append(s.steps, step)
	s.plan.done(step.Rate, found)
}

// Steps are those that were done, in that order.
func (s *Search) Steps() []Step { return slices.Clone(s.steps) }

// judge says whether a step passed, otherwise why not. What the client limited says
// nothing of the server. An objective that was measured and missed decides also
// where the run was too short for a verdict.
func judge(step Step) (found finding, why string) {
	s := step.Summary
	switch {
	case s == nil:
		return inconclusive, cmp.Or(step.Why, "it was not measured")
	case step.Interrupted:
		return inconclusive, cmp.Or(step.Why, "interrupted")
	case step.Client != "":
		return limited, record.Explain(step.Client)
	case s.Verdict != measure.Stable && s.Verdict != measure.None:
		return howFailed(s), string(s.Verdict) + ": " + s.Reason
	}
	unsure := ""
	for _, o := range s.Objectives {
		name := o.Term
		if o.Class != "" {
			name += " of class " + o.Class
		}
		switch {
		case o.Met:
		case o.Measured != nil:
			return howFailed(s), fmt.Sprintf("%s: measured %.4g ms", name, *o.Measured)
		case o.Missed && s.Verdict == measure.Stable:
			return failed, name + ": " + o.Why
		case unsure == "":
			unsure = name + ": " + cmp.Or(o.Why, fmt.Sprintf("%d completed requests are too few for it", s.Completed))
		}
	}
	switch {
	case s.Verdict == measure.None:
		return inconclusive, string(s.Verdict) + ": " + s.Reason
	case unsure != "":
		return inconclusive, unsure
	}
	return passed, ""
}

// near is how far, relative to its bound, an objective may be missed by chance.
const near = 1.1

// howFailed is failedNarrowly if it may be chance: the server kept up or nearly did, and
// each missed objective's bound is within its interval or within a tenth of the
// measurement.
func howFailed(s *measure.Summary) finding {
	if s.Verdict == measure.Overloaded {
		return failed
	}
	for _, o := range s.Objectives {
		if o.Met {
			continue
		}
		term, is := o.Parsed()
		if !is || o.Measured == nil {
			return failed
		}
		bound := term.Bound.Seconds() * 1000
		if *o.Measured > near*bound && (o.CI == nil || o.CI[0] > bound) {
			return failed
		}
	}
	return failedNarrowly
}

// Result is the result so far, also of an interrupted search.
func (s *Search) Result() Result {
	result := Result{Steps: slices.Clone(s.steps)}
	slices.SortStableFunc(result.Steps, func(a, b Step) int { return cmp.Compare(a.Rate, b.Rate) })
	rates := byRate(slices.DeleteFunc(slices.Clone(result.Steps), func(s Step) bool { return s.Interrupted }))
	most := 0.0
	var lowest *float64 // of those that failed
	for i := range rates {
		r := &rates[i]
		switch {
		case r.failed() && lowest == nil:
			lowest = &r.rate
		case r.passed() && lowest == nil:
			result.MaxRate = &r.rate
		case r.passed():
			result.PassedAbove = append(result.PassedAbove, r.rate)
		}
		if result.Breaking == nil && r.broke() {
			result.Breaking = &r.rate
		}
		if goodput := r.goodput(); r.steps[0].Summary != nil && (result.MaxGoodput == nil || goodput > most) {
			result.MaxGoodput, most = &r.rate, goodput
		}
	}
	if result.MaxRate != nil && lowest != nil {
		result.Bracket = &[2]float64{*result.MaxRate, *lowest}
	}
	result.Limited = limit(rates, result.MaxRate)
	result.Knee = knee(rates)
	return result
}

// limit says why the server may sustain more than the highest rate that passed below all
// failures; empty if it may not.
func limit(rates []tried, most *float64) string {
	for _, r := range rates {
		if most != nil && r.rate <= *most {
			continue
		}
		if r.failed() {
			return ""
		}
		if r.passed() || len(r.steps) == 0 {
			continue
		}
		text := ""
		if most != nil {
			text = fmt.Sprintf("at least %.4g/s; ", *most)
		}
		last := r.steps[len(r.steps)-1]
		for _, step := range r.steps {
			if step.Unknown {
				last = step
			}
		}
		if last.Client != "" {
			return text + fmt.Sprintf("at %.4g/s %s", r.rate, record.Explain(last.Client))
		}
		return text + fmt.Sprintf("at %.4g/s there is no verdict: %s", r.rate, last.Why)
	}
	return ""
}

// tried is the steps at one rate.
type tried struct {
	rate  float64
	steps []Step
}

// byRate groups steps that are sorted by rate.
func byRate(steps []Step) []tried {
	var all []tried
	for _, step := range steps {
		if len(all) == 0 || all[len(all)-1].rate != step.Rate {
			all = append(all, tried{rate: step.Rate})
		}
		last := &all[len(all)-1]
		last.steps = append(last.steps, step)
	}
	return all
}

// passed: more than half of the conclusive steps passed.
func (t tried) passed() bool {
	yes, no := t.votes()
	return yes > no
}

// failed: at least half of the conclusive steps failed.
func (t tried) failed() bool {
	yes, no := t.votes()
	return no > 0 && no >= yes
}

func (t tried) votes() (yes, no int) {
	for _, step := range t.steps {
		switch {
		case step.Passed:
			yes++
		case !step.Unknown:
			no++
		}
	}
	return yes, no
}

// broke: more than half of the steps with a verdict were not stable.
func (t tried) broke() bool {
	broke, judged := 0, 0
	for _, step := range t.steps {
		if step.Summary == nil || step.Summary.Verdict == measure.None {
			continue
		}
		judged++
		if step.Summary.Verdict != measure.Stable {
			broke++
		}
	}
	return 2*broke > judged
}

// goodput is the median over the rate's steps.
func (t tried) goodput() float64 {
	return median(t.steps, func(s *measure.Summary) *float64 { return &s.Goodput })
}

// median of a figure over steps, the lower of the middle two; 0 without any.
func median(steps []Step, figure func(*measure.Summary) *float64) float64 {
	var values []float64
	for _, step := range steps {
		if step.Summary == nil {
			continue
		}
		if v := figure(step.Summary); v != nil {
			values = append(values, *v)
		}
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}
