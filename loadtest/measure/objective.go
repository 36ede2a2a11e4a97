package measure

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
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

// atLeast is the least that a latency of a request can be that had not ended at
// until: what came, or how long the client had waited for it. Unset if that says
// nothing.
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
	default: // "tpot": the tokens to come may be quick
		return unset
	}
}

// met says whether a request kept every bound of the SLO, whatever the percentile of
// its term is: the goodput of DistServe (Zhong et al., OSDI '24) and Mooncake (Qin et
// al., FAST '25). A latency that it does not have, such as the TPOT of one token,
// breaks no bound. What the server refused, failed or was too slow for is bad, and so
// is what had broken a bound when it was cancelled.
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
		if r.Outcome == record.Completed || r.Admitted != unset || len(r.Arrivals) > 0 { // the server took it on
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

// wilson is the 95% confidence interval of a share seen in n independent samples
// (E. B. Wilson, 1927); unlike the normal one it holds near 0 and 1.
func wilson(share, n float64) [2]float64 {
	const z = 1.959964
	center := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	return [2]float64{max(0, center-half), min(1, center+half)}
}
