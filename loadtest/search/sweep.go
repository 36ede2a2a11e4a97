package search

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxSweep bounds a sweep's steps.
const maxSweep = 200

// sweep tries a list of rates.
type sweep struct{ rates []float64 }

// NewSweep tries all rates, positive and in requests per second, in the given order. It
// continues past the breaking point, which is part of the picture.
func NewSweep(rates []float64) *Search {
	return &Search{plan: &sweep{slices.Clone(rates)}, judge: judge}
}

func (s *sweep) next() (float64, bool) {
	if len(s.rates) == 0 {
		return 0, false
	}
	return s.rates[0], true
}

func (s *sweep) done(float64, finding) {
	if len(s.rates) > 0 {
		s.rates = s.rates[1:]
	}
}

// GeometricRates returns n rates in geometric progression, to four digits.
func GeometricRates(from, to float64, n int) ([]float64, error) {
	switch {
	case !positive(from) || !positive(to) || from >= to:
		return nil, fmt.Errorf("rates from %v to %v: the first is positive and below the last", from, to)
	case n < 2 || n > maxSweep:
		return nil, fmt.Errorf("%d rates, want 2 to %d", n, maxSweep)
	}
	rates := make([]float64, n)
	for i := range rates {
		rates[i] = Round(from*math.Pow(to/from, float64(i)/float64(n-1)), readable)
	}
	rates[0], rates[n-1] = from, to
	return rates, nil
}

// ParseRates parses a sweep's rates: "1,2,4.5", or "1..64/7" for seven rates in geometric
// progression. The result is sorted, each rate once.
func ParseRates(text string) ([]float64, error) {
	const expect = `rates are numbers with commas ("1,2,4.5") or a range and how many ("1..64/7")`
	if from, rest, isRange := strings.Cut(text, ".."); isRange {
		to, count, _ := strings.Cut(rest, "/")
		a, errA := strconv.ParseFloat(strings.TrimSpace(from), 64)
		b, errB := strconv.ParseFloat(strings.TrimSpace(to), 64)
		n, errN := strconv.Atoi(strings.TrimSpace(count))
		if errA != nil || errB != nil || errN != nil {
			return nil, fmt.Errorf("%q: %s", text, expect)
		}
		return GeometricRates(a, b, n)
	}
	var rates []float64
	for field := range strings.SplitSeq(text, ",") {
		rate, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if err != nil {
			return nil, fmt.Errorf("%q in %q: %s", strings.TrimSpace(field), text, expect)
		}
		if !positive(rate) {
			return nil, fmt.Errorf("a rate of %v: rates are positive, requests a second", rate)
		}
		rates = append(rates, rate)
	}
	if len(rates) > maxSweep {
		return nil, fmt.Errorf("%d rates, at most %d", len(rates), maxSweep)
	}
	slices.Sort(rates)
	return slices.Compact(rates), nil
}

func positive(rate float64) bool { return rate > 0 && rate < 1e9 }

// readable is how many digits of a rate a search keeps.
const readable = 4

// Round keeps so many digits of a rate, which is then easy to read and to type.
func Round(rate float64, digits int) float64 {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(rate, 'g', digits, 64), 64) // formatted from a number
	return short
}
