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

// endless is the latency of what never came: the most that a histogram holds.
const endless = time.Hour

// objectives measures each term over the requests that it is for. drained is when the
// run was over.
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

// told is what the requests tell of a term.
type told struct {
	sample
	// over and counted are requests, not gaps; endless of them, or gaps, never came;
	// open could still have been anything when the run was over.
	over, counted, endless, open int64
}

// tell sorts requests by what they say of a term. One that was refused, failed or
// timed out counts as endless, and one that was cut off or never sent if it had
// waited longer than the bound by then.
func tell(due []*record.Record, drained time.Duration, t Term) told {
	var all told
	values := make([]time.Duration, 0, len(due))
	came := func(d time.Duration) {
		all.counted++
		if !t.Within(d) {
			all.over++
		}
		values = append(values, d)
	}
	never := func() {
		all.over++
		all.counted++
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
			d := requestLatency(r, t.Latency)
			switch least := atLeast(r, t.Latency, until); {
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
	// The gaps that came, of all requests, and one for each that never did.
	gaps, lost := gaps(due, false), all.endless
	all.sample = sample{gaps.groups + 1, func(yield func(int, time.Duration, int64)) {
		gaps.each(yield)
		if lost > 0 {
			yield(gaps.groups, endless, lost)
		}
	}}
	return all
}

func objective(due []*record.Record, drained time.Duration, t Term) Objective {
	o := Objective{Term: t.String()}
	all := tell(due, drained, t)
	h := stats.NewHistogram()
	all.each(func(_ int, d time.Duration, n int64) { h.RecordN(d, n) })
	if h.Count() == 0 {
		o.Why = "no request has this figure"
		return o
	}
	share := t.Percentile / 100
	if t.Percentile != 100 && h.Count() < stats.QuantileNeeds(share, confidence) {
		o.Why = fmt.Sprintf("%d samples are too few, it takes %d", h.Count(), stats.QuantileNeeds(share, confidence))
		return o
	}
	// at is the percentile if open latencies more are added, of which below are the
	// shortest of all and the others the longest.
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
		o.Why = fmt.Sprintf("%d requests were cut off too early, enough to decide it", all.open)
		return o
	}
	if value >= endless {
		o.Missed, o.Why = true, fmt.Sprintf("it falls on the %d requests that were not served, or not in time, of %d", all.endless, h.Count())
		return o
	}
	o.Measured = new(milliseconds(value))
	o.Met = within(value)
	if t.Percentile == 100 {
		return o
	}
	if ci := estimate(all.sample, h, share)[0].ci; ci != nil && ci[1] < milliseconds(endless) {
		o.CI = ci
	}
	if t.Latency != "itl" {
		o.NeedsRequests = stats.EarlyStopping(all.over, t.Percentile, stats.MLPerfConfidence)
		o.Early = o.Met && all.counted >= o.NeedsRequests
	}
	return o
}
