package handover

import "time"

// Judge is what a result of some requests says of first tokens.
func Judge(requests int, ttft ...Spread) *Result {
	r := &Result{Plan: Plan{Requests: requests}}
	for _, s := range ttft {
		r.Ways = append(r.Ways, Way{Transport: "tcp", TTFT: s})
	}
	r.judge()
	return r
}

// SpreadOf is spreadOf.
func SpreadOf(times []time.Duration) Spread { return spreadOf(times) }
