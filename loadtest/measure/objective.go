package measure

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// meets is whether a request kept its bounds.
type meets uint8

const (
	unknown meets = iota // cut off before it could break one
	kept
	bad
)

// requestLatency is the latency of a request that an SLO term bounds, for ITL the longest
// gap. Unset if there is none.
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

// atLeast is a lower bound of the latency of a request that had not ended at until, from
// what arrived or how long the client had waited. Unset if unknown.
func atLeast(r *record.Record, name string, until time.Duration) time.Duration {
	switch name {
	case "ttft", "e2e":
		if d := requestLatency(r, "ttft"); name == "ttft" && d != unset {
			return d
		}
		return between(r.Due, until)
	case "second_token":
		if d := secondToken(r); d != unset {
			return d
		}
		return between(r.First(), until)
	case "itl":
		return max(longestGap(r), between(r.Last(), until))
	default: // "tpot": the remaining tokens may be fast
		return unset
	}
}

// met reports whether a request kept every bound of the SLO, whatever the terms'
// percentiles: goodput as in DistServe (Zhong et al., OSDI '24) and Mooncake (Qin et al.,
// FAST '25). A missing latency, such as TPOT with one token, breaks no bound. Refused,
// failed and timed-out requests do not meet it, nor do cancelled ones that had already
// broken a bound.
func met(r *record.Record, slo SLO) meets {
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
			if d := atLeast(r, t.Latency, r.End); d != unset && !t.Within(d) {
				return bad
			}
		}
		return unknown
	default:
		return bad
	}
}

// Meets reports whether a request that has ended kept every bound of an SLO, as SLOAttainment
// counts it.
func Meets(r *record.Record, slo SLO) bool { return met(r, slo) == kept }

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
		if r.Outcome == record.Completed {
			completed++
		}
		if r.Outcome == record.Completed || r.Admitted != unset || len(r.Arrivals) > 0 { // the server accepted it
			taken++
		}
		if m == kept {
			good++
			hits[len(hits)-1] = 1
		}
	}
	s.SLOAttainment = good / max(offered, 1)
	s.SLOAttainmentAdmitted = good / max(taken, 1)
	s.SLOAttainmentCompleted = good / max(completed, 1)
	if n := stats.EffectiveSize(hits, totals); n > 0 {
		if s.RateCI == nil {
			s.RateCI = map[string][2]float64{}
		}
		s.RateCI["slo_attainment"] = wilson(s.SLOAttainment, n)
	}
}

// wilson is the 95% confidence interval of a share in n independent samples (E. B.
// Wilson, 1927). Unlike the normal approximation it is valid near 0 and 1.
func wilson(share, n float64) [2]float64 {
	const z = 1.959964
	center := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	return [2]float64{max(0, center-half), min(1, center+half)}
}
