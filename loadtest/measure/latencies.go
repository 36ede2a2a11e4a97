package measure

import (
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// unset is a latency that a request does not have.
const unset = record.Unset

// between is the time from a to b, unset if either is missing. Both come from one clock
// but different goroutines, so slightly negative results count as 0.
func between(a, b time.Duration) time.Duration {
	if a == unset || b == unset {
		return unset
	}
	return max(0, b-a)
}

// secondToken is the time from first to second token, 0 if one message brought both.
func secondToken(r *record.Record) time.Duration {
	switch {
	case len(r.Arrivals) == 0:
		return unset
	case r.Arrivals[0].Tokens > 1:
		return 0
	case len(r.Arrivals) == 1:
		return unset
	}
	return between(r.Arrivals[0].At, r.Arrivals[1].At)
}

// tpot is the time per output token after the first, unset with fewer than two.
func tpot(r *record.Record) time.Duration {
	if r.OutputTokens < 2 || len(r.Arrivals) == 0 {
		return unset
	}
	return between(r.First(), r.Last()) / time.Duration(r.OutputTokens-1)
}

func normalizedE2E(r *record.Record) time.Duration {
	if r.OutputTokens < 1 || len(r.Arrivals) == 0 {
		return unset
	}
	return between(r.Due, r.Last()) / time.Duration(r.OutputTokens)
}

// longestGap is the longest time without a message between the first and the last, unset
// with fewer than two tokens.
func longestGap(r *record.Record) time.Duration {
	longest := secondToken(r)
	for i := 1; i < len(r.Arrivals); i++ {
		longest = max(longest, between(r.Arrivals[i-1].At, r.Arrivals[i].At))
	}
	return longest
}

// requestLatencies are the latencies with one value per request. A value counts however
// the request ended, or, if whole, only for completed requests. Nothing that arrived is
// left out, since a slow server is slowest for requests that do not finish.
var requestLatencies = []struct {
	name  Latency
	whole bool
	value func(*record.Record) time.Duration
	of    func(*Summary) **Distribution
}{
	{TTFT, false, func(r *record.Record) time.Duration { return between(r.Due, r.First()) }, func(s *Summary) **Distribution { return &s.TTFT }},
	{TTFTSent, false, func(r *record.Record) time.Duration { return between(r.Sent, r.First()) }, func(s *Summary) **Distribution { return &s.TTFTSent }},
	{SecondToken, false, secondToken, func(s *Summary) **Distribution { return &s.SecondToken }},
	{TPOT, true, tpot, func(s *Summary) **Distribution { return &s.TPOT }},
	{E2E, true, func(r *record.Record) time.Duration { return between(r.Due, r.Last()) }, func(s *Summary) **Distribution { return &s.E2E }},
	{E2ESent, true, func(r *record.Record) time.Duration { return between(r.Sent, r.Last()) }, func(s *Summary) **Distribution { return &s.E2ESent }},
	{NormalizedE2E, true, normalizedE2E, func(s *Summary) **Distribution { return &s.NormalizedE2E }},
	{AdmissionDelay, false, func(r *record.Record) time.Duration { return between(r.Sent, r.Admitted) }, func(s *Summary) **Distribution { return &s.AdmissionDelay }},
}

// OfRequest is one latency of a request, as in Summarize. record.Unset if the request
// lacks it, or if it has several values per request, like ITL.
func OfRequest(l Latency, r *record.Record) time.Duration {
	for i := range requestLatencies {
		if of := &requestLatencies[i]; of.name == l {
			if of.whole && r.Outcome != record.Completed {
				return unset
			}
			return of.value(r)
		}
	}
	if l == DispatchDelay {
		return between(r.Due, r.Dispatched)
	}
	return unset
}

// collect returns the values of the requests that have one.
func collect(records []*record.Record, value func(*record.Record) time.Duration) []time.Duration {
	values := make([]time.Duration, 0, len(records))
	for _, r := range records {
		if d := value(r); d != unset {
			values = append(values, d)
		}
	}
	return values
}

// maxBins bounds the groups of gaps. A bin is a span of time, since whatever delays one
// stream's token delays the others at that time.
const maxBins = 1024

// gaps is the sample of gaps between tokens, or between messages, of all requests. Of the
// tokens in one message, the first has the gap and the others have 0.
func gaps(records []*record.Record, messages bool) sample {
	first, last := time.Duration(-1), time.Duration(0)
	for _, r := range records {
		if len(r.Arrivals) == 0 {
			continue
		}
		if first < 0 || r.First() < first {
			first = r.First()
		}
		last = max(last, r.Last())
	}
	if first < 0 {
		return sample{0, func(func(int, time.Duration, int64)) {}}
	}
	width := max(last-first, 0)/maxBins + 1
	bin := func(at time.Duration) int { return int(min(max(at-first, 0)/width, maxBins-1)) }
	return sample{maxBins, func(yield func(int, time.Duration, int64)) {
		for _, r := range records {
			for i, a := range r.Arrivals {
				if i > 0 {
					yield(bin(a.At), between(r.Arrivals[i-1].At, a.At), 1)
				}
				if !messages && a.Tokens > 1 {
					yield(bin(a.At), 0, int64(a.Tokens-1))
				}
			}
		}
	}}
}
