package measure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// endless stands for the latency of what never arrived. It is a histogram's maximum.
const endless = time.Hour

// objectives measures each term over its requests. drained is the end of the run.
func objectives(due []*record.Record, drained time.Duration, options Options) []Objective {
	var all []Objective
	measureAll := func(class string, slo SLO, in func(*record.Record) bool) {
		if len(slo.Terms) == 0 {
			return
		}
		var records []*record.Record
		for _, r := range due {
			if in(r) {
				records = append(records, r)
			}
		}
		for _, t := range slo.Terms {
			o := objective(records, drained, t)
			o.Class = class
			all = append(all, o)
		}
	}
	measureAll("", options.SLO, func(r *record.Record) bool {
		_, own := options.ClassSLO[r.Class]
		return !own
	})
	for _, class := range slices.Sorted(maps.Keys(options.ClassSLO)) {
		measureAll(class, options.ClassSLO[class], func(r *record.Record) bool { return r.Class == class })
	}
	return all
}

// termSample is what the requests show about a term.
type termSample struct {
	sample
	// endless is how many latencies never ended. open is how many requests were still
	// undecided when the run ended; the sample lacks them.
	endless, open int64
}

// newTermSample collects the latencies of a term. Refused, failed and timed-out requests count as
// endless. So do cut-off and unsent ones that waited longer than the bound.
func newTermSample(due []*record.Record, drained time.Duration, t Term) termSample {
	var all termSample
	values := make([]time.Duration, 0, len(due))
	came := func(d time.Duration) { values = append(values, d) }
	never := func() {
		all.endless++
		values = append(values, endless)
	}
	for _, r := range due {
		switch r.Outcome {
		case record.Completed:
			if d := requestLatency(r, t.Latency); d != unset {
				came(d)
			}
		case record.Rejected, record.Failed, record.TimedOut:
			never()
		default:
			until := r.End
			if until == unset {
				until = max(drained, r.Due)
			}
			d, least := requestLatency(r, t.Latency), atLeast(r, t.Latency, until)
			if t.Latency == "itl" { // its other gaps are in the sample
				least = between(r.Last(), until)
			}
			switch {
			case d != unset && (t.Latency == "ttft" || t.Latency == "second_token"):
				came(d)
			case least != unset && !t.Within(least):
				never()
			default:
				all.open++
			}
		}
	}
	if t.Latency != "itl" {
		all.sample = perRequest(values)
		return all
	}
	// The gaps of all requests, and an endless one for each request that never came.
	gaps, lost := gaps(due, false), all.endless
	all.sample = sample{gaps.groups + 1, func(yield func(int, time.Duration, int64)) {
		gaps.each(yield)
		if lost > 0 {
			yield(gaps.groups, endless, lost)
		}
	}}
	return all
}

// why says why a percentile that falls on endless latencies is missed: first how those that
// ended would have fared without them.
func (all termSample) why(h *stats.Histogram, t Term) string {
	endless := fmt.Sprintf("%d of %d were not served in time", all.endless, h.Count())
	ended := h.Count() - all.endless
	share := t.Percentile / 100
	if ended == 0 || t.Percentile != 100 && ended < stats.QuantileNeeds(share) {
		return endless
	}
	served := h.AtRank(min(int64(math.Ceil(share*float64(ended)-1e-6)), ended))
	text := fmt.Sprintf("%s of those served is %.4g ms, ", t.Quantile(), stats.Milliseconds(served))
	if t.Within(served) {
		return text + "but " + endless
	}
	return text + "and " + endless
}

func objective(due []*record.Record, drained time.Duration, t Term) Objective {
	o := Objective{Term: t.String()}
	all := newTermSample(due, drained, t)
	h := stats.NewHistogram()
	all.each(func(_ int, d time.Duration, n int64) { h.RecordN(d, n) })
	if h.Count() == 0 {
		o.Why = "no request has this figure"
		return o
	}
	share := t.Percentile / 100
	if t.Percentile != 100 && h.Count() < stats.QuantileNeeds(share) {
		needs := stats.QuantileNeeds(share)
		o.Why = fmt.Sprintf("too few samples: %d of the %d that it takes", h.Count(), needs)
		if t.Latency != "itl" {
			o.NeedsRequests = needs
		}
		return o
	}
	// at is the percentile with open more latencies, below of them shorter than all others
	// and the rest longer.
	at := func(open, below int64) time.Duration {
		n := h.Count() + open
		rank := int64(math.Ceil(share*float64(n)-1e-6)) - below
		switch {
		case rank > h.Count()-all.endless:
			return endless
		case rank < 1:
			return 0
		case t.Percentile == 100:
			return h.Max()
		}
		return h.AtRank(rank)
	}
	value := at(0, 0)
	within := func(d time.Duration) bool { return d < endless && t.Within(d) }
	if within(at(all.open, all.open)) != within(at(all.open, 0)) {
		o.Why = fmt.Sprintf("too many requests were cut off too early to tell: %d", all.open)
		return o
	}
	if value >= endless {
		o.Missed, o.Why = true, all.why(h, t)
		return o
	}
	o.Measured = new(stats.Milliseconds(value))
	o.Met = within(value)
	if t.Percentile == 100 {
		return o
	}
	estimates := estimate(all.sample, h, append(sharesBelow(share), share))
	e := estimates[len(estimates)-1]
	switch {
	case e.ci != nil && e.ci[1] < stats.Milliseconds(endless):
		o.CI = e.ci
		o.Confirmed = o.Met && e.ci[1] <= stats.Milliseconds(t.Bound)
	case e.ci == nil && t.Latency != "itl":
		o.NeedsRequests = e.needs
	}
	return o
}
