package latency

import (
	"errors"
	"math"
	"slices"
)

// Measured is the time of one kind of step.
type Measured struct {
	Work Work
	// Ms is its typical time, such as the median of repeats.
	Ms float64
}

// FitOptions say what a phase's time may depend on.
type FitOptions struct {
	// Square, Context, Sample: those terms are fitted; base and tokens always are.
	Square, Context, Sample bool
	// MostRegimes is how many regimes by tokens there may be; at least 1.
	MostRegimes int
}

// worthRegime is what one more regime has to leave of the fit's squared error to
// be worth having.
const worthRegime = 0.7

// Fit finds the terms that are nearest to what was measured: least squares of the
// relative errors, so that a short step weighs as much as a long one, with no term
// below 0. More than one regime is used where that is markedly nearer. The error
// is relative to the measurements it was fitted to.
func Fit(measured []Measured, o FitOptions) ([]Regime, FitError, error) {
	if len(measured) == 0 {
		return nil, FitError{}, errors.New("fit a profile: nothing was measured")
	}
	var breaks []int // all sizes
	for _, m := range measured {
		if m.Work.Tokens < 1 || !(m.Ms > 0) || math.IsInf(m.Ms, 0) {
			return nil, FitError{}, errors.New("fit a profile: a step has no tokens or took no time")
		}
		breaks = append(breaks, m.Work.Tokens)
	}
	slices.Sort(breaks)
	breaks = slices.Compact(breaks)
	best, loss := fitRegimes(measured, o, nil)
	// Breaks are added one by one, each where it helps most: not always the best
	// set, but near it and quick.
	var chosen []int
	for range max(o.MostRegimes, 1) - 1 {
		var next []Regime
		var at int
		least := math.Inf(1)
		for _, b := range breaks[:len(breaks)-1] {
			if slices.Contains(chosen, b) {
				continue
			}
			set := append(slices.Clone(chosen), b)
			slices.Sort(set)
			if regimes, l := fitRegimes(measured, o, set); regimes != nil && l < least {
				next, least, at = regimes, l, b
			}
		}
		if next == nil || least > worthRegime*loss || loss < 1e-12*float64(len(measured)) {
			break
		}
		best, loss, chosen = next, least, append(chosen, at)
		slices.Sort(chosen)
	}
	errs := make([]float64, len(measured))
	for i, m := range measured {
		errs[i] = predictMs(best, m.Work)/m.Ms - 1
	}
	return best, NewFitError(errs), nil
}

func predictMs(regimes []Regime, w Work) float64 {
	terms := regimeOf(regimes, w.Tokens)
	return terms.BaseMs + terms.variable(w)
}

// fitRegimes fits one regime for each interval between breaks. It is nil if one
// holds too few sizes to tell the base from the rest.
func fitRegimes(measured []Measured, o FitOptions, breaks []int) (regimes []Regime, loss float64) {
	above := 0
	for i := range len(breaks) + 1 {
		upTo := 0
		if i < len(breaks) {
			upTo = breaks[i]
		}
		var part []Measured
		sizes := make(map[int]bool)
		for _, m := range measured {
			if m.Work.Tokens > above && (upTo == 0 || m.Work.Tokens <= upTo) {
				part = append(part, m)
				sizes[m.Work.Tokens] = true
			}
		}
		if len(breaks) > 0 && len(sizes) < 2 {
			return nil, 0
		}
		terms, l := fitTerms(part, o)
		regimes, loss = append(regimes, Regime{UpTo: upTo, Terms: terms}), loss+l
		above = upTo
	}
	return regimes, loss
}

func fitTerms(measured []Measured, o FitOptions) (Terms, float64) {
	row := func(w Work) vector {
		x := vector{1, float64(w.Tokens)}
		if o.Square {
			x[2] = w.Squares
		}
		if o.Context {
			x[3] = w.Context
		}
		if o.Sample {
			x[4] = float64(w.Samples)
		}
		return x
	}
	var xx matrix
	var xy vector
	for _, m := range measured {
		x := row(m.Work)
		for i := range x {
			x[i] /= m.Ms
		}
		for i := range x {
			for j := range x {
				xx[i][j] += x[i] * x[j]
			}
			xy[i] += x[i]
		}
	}
	c := nonNegativeLeastSquares(maxTerms, xx, xy, vector{1, 1, 1, 1, 1})
	terms := Terms{BaseMs: c[0], PerTokenMs: c[1], PerSquareMs: c[2], PerContextTokenMs: c[3], PerSampleMs: c[4]}
	loss := 0.0
	for _, m := range measured {
		e := (terms.BaseMs+terms.variable(m.Work))/m.Ms - 1
		loss += e * e
	}
	return terms, loss
}

// NewFitError sums up relative errors, which it takes without sign.
func NewFitError(relative []float64) FitError {
	if len(relative) == 0 {
		return FitError{}
	}
	sizes := make([]float64, len(relative))
	for i, e := range relative {
		sizes[i] = math.Abs(e)
	}
	slices.Sort(sizes)
	rank := func(p float64) float64 { return sizes[min(int(math.Ceil(p*float64(len(sizes)))), len(sizes))-1] }
	return FitError{Points: len(sizes), Median: rank(0.5), P90: rank(0.9), Max: sizes[len(sizes)-1]}
}
