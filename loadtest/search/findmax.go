package search

import "math"

// bounds of a search for the highest rate that passes. Rates are requests a second.
type bounds struct {
	// Start is the first rate. Factor is what it grows by until a step fails, or falls by
	// until one passes.
	Start, Factor float64
	// Tolerance is how far apart, relative to the lower one, the highest rate that
	// passes and the least that fails may be in the end.
	Tolerance float64
	// Min and Max are the least and the most that is tried.
	Min, Max float64
	// MaxSteps ends the search however far it got.
	MaxSteps int
	// Repeats is how often chance may be wrong: a rate that fails narrowly is tried
	// again until more than Repeats runs of it agree, and the rate that is found must
	// have passed more than Repeats times. A step that tells nothing is also tried again
	// so often.
	Repeats int
}

// findMax brackets the highest rate that passes, halves the bracket on a logarithmic
// scale, and confirms the end that passed.
type findMax struct {
	bounds
	votes map[float64]*votes
	taken int
	// low is the highest rate that passes, high the least that fails, 0 if none is
	// known.
	low, high float64
	// again is a rate that needs another run, 0 if none does.
	again float64
	// ceiling is the least rate of which nothing can be told since the client is the
	// limit there, 0 if there is none; stuck: nothing could be told for another reason.
	ceiling float64
	stuck   bool
}

// votes are the runs at one rate.
type votes struct {
	passed, failed, unknown int
	// clear: a run failed by far.
	clear bool
}

// NewFindMax searches the highest rate that passes, from a first rate on.
//
// With a server whose steps pass up to a threshold T between start/1024 and start·1024
// and fail above it, the result is within a twentieth under T, after at most about
// |log2(T/start)| + 7 steps; 30 steps end it in any case.
//
// A rate at which the client is the limit ends the way up: below it the search only
// looks for one that passes, and confirms it. A rate of which nothing can be told for
// another reason ends the search: a lower one has even fewer requests.
func NewFindMax(start float64) *Search { return newFindMax(defaults(start)) }

// defaults allow for one run that chance decided: the best of three.
func defaults(start float64) bounds {
	return bounds{Start: start, Factor: 2, Tolerance: 0.05, Min: start / 1024, Max: start * 1024, MaxSteps: 30, Repeats: 1}
}

func newFindMax(b bounds) *Search {
	return &Search{plan: &findMax{bounds: b, votes: map[float64]*votes{}}}
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
		return 0, false // not even the least rate passes
	case f.high > 0 && f.high/f.low > 1+f.Tolerance:
		return f.between(), true
	case f.votes[f.low].passed <= f.Repeats:
		return f.low, true // confirm it
	}
	return 0, false
}

// capped is whether the client is the limit before the server is.
func (f *findMax) capped() bool { return f.ceiling > 0 && (f.high == 0 || f.ceiling < f.high) }

// between is the middle of the bracket on a logarithmic scale, to four digits where
// they can tell it from the ends.
func (f *findMax) between() float64 {
	middle := math.Sqrt(f.low * f.high)
	if short := round(middle); short > f.low && short < f.high {
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

// unknown takes a step that tells nothing.
func (f *findMax) unknown(rate float64, v *votes, found finding) {
	v.unknown++
	switch {
	case v.unknown <= f.Repeats:
		f.again = rate
	case v.passed > v.failed:
		// What passed is not confirmed, but stands.
		v.passed = max(v.passed, f.Repeats+1)
		f.stuck = true
	case found == limited:
		f.ceiling = rate // below all others, since none above one is asked for
	default:
		f.stuck = true
	}
}

// failed lowers the upper end to rate, and the lower end to what passed below it.
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
