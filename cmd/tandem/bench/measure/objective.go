package measure

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/record"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// meets says whether a request kept its bounds.
type meets uint8

const (
	unknown meets = iota // it was cut off before it could break one
	kept
	bad
)

// requestLatency is what a term of an SLO bounds of one request: of the gaps between
// tokens the longest. Unset if it has none.
func requestLatency(r *record.Record, name string) time.Duration {
	switch name {
	case "ttft":
		return between(r.Due, r.First())
	case "second_token":
		return secondToken(r)
	case "itl":
		return longestGap(r)
	case "tpot":
		return tpot(r)
	default: // "e2e"
		return between(r.Due, r.Last())
	}
}

// met says whether a request kept every bound of the SLO, whatever the percentile of
// its term is: the goodput of DistServe (Zhong et al., OSDI '24) and Mooncake (Qin et
// al., FAST '25). A latency that it does not have, such as the TPOT of one token,
// breaks no bound. What the server refused, failed or was too slow for is bad.
func met(r *record.Record, slo latency.SLO) meets {
	switch r.Outcome {
	case record.Completed:
		for _, t := range slo.Terms {
			if d := requestLatency(r, t.Latency); d != unset && !t.Within(d) {
				return bad
			}
		}
		return kept
	case record.Cancelled, record.Pending:
		for _, t := range slo.Terms {
			waited := between(r.Due, r.End)
			late := t.Latency == "e2e" || t.Latency == "ttft" && r.First() == unset
			if d := requestLatency(r, t.Latency); t.Latency == "ttft" && d != unset {
				waited, late = d, true
			}
			if late && waited != unset && !t.Within(waited) {
				return bad
			}
		}
		return unknown
	default:
		return bad
	}
}

// admitted is whether the server took a request on.
func admitted(r *record.Record) bool {
	return r.Outcome == record.Completed || r.Admitted != unset || len(r.Arrivals) > 0
}

// attainment is the share of requests that met their SLO.
func (s *Summary) attainment(due []*record.Record, options Options) {
	var good, offered, taken, completed float64
	hits, totals := make([]float64, 0, len(due)), make([]float64, 0, len(due))
	for _, r := range due {
		m := met(r, options.slo(r.Class))
		if m == unknown {
			continue
		}
		offered++
		hits, totals = append(hits, 0), append(totals, 1)
		if admitted(r) {
			taken++
		}
		if r.Outcome == record.Completed {
			completed++
		}
		if m == kept {
			good++
			hits[len(hits)-1] = 1
		}
	}
	s.SLOAttainment = good / max(offered, 1)
	s.SLOAttainmentAdmitted = good / max(taken, 1)
	s.SLOAttainmentCompleted = good / max(completed, 1)
	if n := latency.EffectiveSize(hits, totals); n > 0 {
		if s.RateCI == nil {
			s.RateCI = map[string][2]float64{}
		}
		s.RateCI["slo_attainment"] = wilson(s.SLOAttainment, n)
	}
}

// wilson is the 95% confidence interval of a share seen in n independent samples
// (E. B. Wilson, 1927); unlike the normal one it holds near 0 and 1.
func wilson(share, n float64) [2]float64 {
	const z = 1.959964
	center := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	return [2]float64{max(0, center-half), min(1, center+half)}
}

// objectives measures each term over the requests that it is for.
func objectives(due []*record.Record, options Options) []Objective {
	var all []Objective
	measureAll := func(class string, slo latency.SLO, in func(*record.Record) bool) {
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
			o := objective(records, t)
			o.Class = class
			all = append(all, o)
		}
	}
	measureAll("", options.SLO, func(r *record.Record) bool {
		_, own := options.ClassSLO[r.Class]
		return !own
	})
	classes := make([]string, 0, len(options.ClassSLO))
	for class := range options.ClassSLO {
		classes = append(classes, class)
	}
	slices.Sort(classes)
	for _, class := range classes {
		measureAll(class, options.ClassSLO[class], func(r *record.Record) bool { return r.Class == class })
	}
	return all
}

func objective(due []*record.Record, t latency.Term) Objective {
	o := Objective{Term: t.String()}
	var completed []*record.Record
	over, counted := int64(0), int64(0)
	for _, r := range due {
		switch r.Outcome {
		case record.Completed:
			completed = append(completed, r)
			d := requestLatency(r, t.Latency)
			if d == unset {
				continue
			}
			counted++
			if !t.Within(d) {
				over++
			}
		case record.Rejected, record.Failed, record.TimedOut:
			counted++
			over++
		default:
		}
	}
	s := gaps(completed, false)
	if t.Latency != "itl" {
		s = perRequest(collect(completed, func(r *record.Record) time.Duration { return requestLatency(r, t.Latency) }))
	}
	h := latency.NewHistogram()
	s.each(func(_ int, d time.Duration, n int64) { h.RecordN(d, n) })
	if h.Count() == 0 {
		return o
	}
	if t.Percentile == 100 {
		o.Measured = pointer(milliseconds(h.Max()))
		o.Met = t.Within(h.Max())
		return o
	}
	e := estimate(s, h, t.Percentile/100)[0]
	o.Measured, o.CI = e.value, e.ci
	if e.value == nil {
		return o
	}
	o.Met = *e.value < milliseconds(t.Bound) || t.Inclusive && *e.value == milliseconds(t.Bound)
	if t.Latency != "itl" {
		o.NeedsRequests = latency.EarlyStopping(over, t.Percentile, latency.MLPerfConfidence)
		o.Early = o.Met && counted >= o.NeedsRequests
	}
	return o
}
