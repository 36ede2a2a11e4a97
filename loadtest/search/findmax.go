package search

import "math"

// bounds of a search for the highest passing rate. Rates are requests per second.
type bounds struct {
	// Start is the first rate. Factor multiplies it until a step fails, or divides it
	// until one passes.
	Start, Factor float64
	// Tolerance is the final relative distance between the highest passing and the lowest
	// failing rate.
	Tolerance float64
	// Min and Max bound the rates tried.
	Min, Max float64
	// MaxSteps bounds the search.
	MaxSteps int
	// Repeats is how many runs may be wrong by chance: a narrowly failing rate is
	// repeated until more than Repeats of its runs agree, the resulting rate must pass
	// more than Repeats times, and an inconclusive step is repeated at most Repeats
	// times.
	Repeats int
}

// findMax brackets the highest passing rate, bisects on a logarithmic scale, and confirms
// the result.
type findMax struct {
	bounds
	votes map[float64]*votes
	taken int
	// low is the highest passing rate, high the lowest failing one, 0 if unknown.
	low, high float64
	// again is a rate to repeat, 0 if none.
	again float64
	// ceiling is the lowest rate at which the client is the limit, 0 if none; stuck: a
	// step was inconclusive for another reason.
	ceiling float64
	stuck   bool
}

// votes are the results at one rate.
type votes struct {
	passed, failed, unknown int
	// clear: a run failed by far.
	clear bool
}

// NewFindMax searches for the highest passing rate, beginning with start.
//
// If steps pass up to a threshold T between start/1024 and start·1024 and fail above it,
// the result is within 5% below T after at most about |log2(T/start)| + 7 steps. The
// search ends after 30 steps in any case.
//
// A rate at which the client is the limit ends the way up: the search then only looks for
// a passing rate below it and confirms that. A rate that is inconclusive for another
// reason ends the search, since a lower one has even fewer requests.
func NewFindMax(start float64) *Search { return newFindMax(defaults(start)) }

// defaults tolerate one wrong run: the best of three.
func defaults(start float64) bounds {
	return bounds{Start: start, Factor: 2, Tolerance: 0.05, Min: start / 1024, Max: start * 1024, MaxSteps: 30, Repeats: 1}
}

func newFindMax(b bounds) *Search {
	return &Search{plan: &findMax{bounds: b, votes: map[float64]*votes{}}, judge: judge}
}

func (f *findMax) next() (float64, bool) {
	switch {
	case f.taken >= f.MaxSteps:
		return 0, false
	case f.again > 0:
		return f.again, true
	case f.stuck && f.low == 0:
		return 0, false
	case f.stuck || f.low > 0 && f.capped():
		return f.low, f.votes[f.low].passed <= f.Repeats // confirm it
	case f.capped() && f.ceiling > f.Min:
		return max(f.ceiling/f.Factor, f.Min), true
	case f.capped():
		return 0, false
	case f.low == 0 && f.high == 0:
		return f.Start, true
	case f.high == 0 && f.low < f.Max:
		return min(f.low*f.Factor, f.Max), true
	case f.low == 0 && f.high > f.Min:
		return max(f.high/f.Factor, f.Min), true
	case f.low == 0:
		return 0, false // not even the minimum passes
	case f.high > 0 && f.high/f.low > 1+f.Tolerance:
		return f.between(), true
	case f.votes[f.low].passed <= f.Repeats:
		return f.low, true // confirm it
	}
	return 0, false
}

// capped reports whether the client is the limit before the server.
func (f *findMax) capped() bool { return f.ceiling > 0 && (f.high == 0 || f.ceiling < f.high) }

// between is the logarithmic middle of the bracket, rounded if that keeps it apart
// from the ends.
func (f *findMax) between() float64 {
	middle := math.Sqrt(f.low * f.high)
	if short := Round(middle, readable); short > f.low && short < f.high {
		return short
	}
	return middle
}

func (f *findMax) done(rate float64, found finding) {
	f.taken++
	f.again = 0
	v := f.votes[rate]
	if v == nil {
		v = &votes{}
		f.votes[rate] = v
	}
	switch found {
	case passed:
		v.passed++
	case failed, failedNarrowly:
		v.failed++
		v.clear = v.clear || found == failed
	default:
		f.unknown(rate, v, found)
		return
	}
	switch {
	case v.failed == 0 || v.passed > f.Repeats:
		if f.high == 0 || rate < f.high {
			f.low = max(f.low, rate)
		}
	case v.clear && v.passed == 0 || v.failed > f.Repeats:
		f.failed(rate)
	default:
		f.again = rate
	}
}

// unknown processes an inconclusive step.
func (f *findMax) unknown(rate float64, v *votes, found finding) {
	v.unknown++
	switch {
	case v.unknown <= f.Repeats:
		f.again = rate
	case v.passed > v.failed:
		// The lower rate stands, unconfirmed.
		v.passed = max(v.passed, f.Repeats+1)
		f.stuck = true
	case found == limited:
		f.ceiling = rate // the lowest so far, since no higher rate is asked for
	default:
		f.stuck = true
	}
}

// failed lowers the upper end to rate, and the lower end to the highest passing rate
// below it.
func (f *findMax) failed(rate float64) {
	if f.high == 0 || rate < f.high {
		f.high = rate
	}
	if f.low < f.high {
		return
	}
	f.low = 0
	for other, v := range f.votes {
		if other < f.high && v.passed > v.failed {
			f.low = max(f.low, other)
		}
	}
}
