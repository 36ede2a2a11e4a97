package sampler

import "math"

// ln2High and ln2Low add up to the logarithm of 2. The first has zeros at its end,
// so that its products with exponents are exact.
const (
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
)

// exp is e^x for x <= 0, within 1e-15 of the true value relatively, and 0 below
// the smallest normal number. The standard library's version is assembly on some
// machines and differs from one to the next in the last bit; this one does not:
// each product is rounded before it is added (a conversion forbids fusing).
//
// Method: x = n·ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor series, scaled by
// 2^n. ln 2 is split in two so that n·ln2High is exact (Cody and Waite).
func exp(x float64) float64 {
	const log2e = 1.44269504088896338700e+00
	if !(x > -708) { // NaN as well
		return 0
	}
	n := math.Floor(float64(x*log2e) + 0.5)
	r := float64(x-float64(n*ln2High)) - float64(n*ln2Low)
	sum := taylor[len(taylor)-1]
	for i := len(taylor) - 2; i >= 0; i-- {
		sum = float64(sum*r) + taylor[i]
	}
	return math.Float64frombits(math.Float64bits(sum) + uint64(int64(n))<<52)
}

// taylor holds 1/i!. The first one left out contributes less than 2^-58.
var taylor = [...]float64{
	1, 1, 1. / 2, 1. / 6, 1. / 24, 1. / 120, 1. / 720, 1. / 5040, 1. / 40320,
	1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800,
}
