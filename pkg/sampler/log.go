package sampler

import "math"

// log is the natural logarithm of x, within 1e-15 of the true value relatively;
// minus infinity of 0, NaN of what is below. As for exp, the standard library's
// version is assembly on some machines; here each product is rounded before it is
// added.
//
// Method: x = 2^n·m with m between the square roots of 1/2 and of 2; log m =
// 2·artanh(r) with r = (m-1)/(m+1), |r| < 0.172, by the series r + r³/3 + r⁵/5 + …;
// ln 2 is split in two as in exp.
func log(x float64) float64 {
	switch {
	case x == 0:
		return math.Inf(-1)
	case !(x > 0): // NaN as well
		return math.NaN()
	case x > math.MaxFloat64:
		return x
	}
	m, exponent := math.Frexp(x) // exact; m from 1/2 to 1
	if m < math.Sqrt2/2 {
		m *= 2
		exponent--
	}
	n := float64(exponent)
	r := (m - 1) / (m + 1)
	square := float64(r * r)
	sum := odd[len(odd)-1]
	for i := len(odd) - 2; i >= 0; i-- {
		sum = float64(sum*square) + odd[i]
	}
	small := float64(n*ln2Low) + float64(float64(2*r)*sum)
	return float64(n*ln2High) + small
}

// odd holds 1/(2i+1). The first one left out contributes less than 2^-60.
var odd = [...]float64{
	1, 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21, 1. / 23,
}
