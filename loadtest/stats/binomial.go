package stats

import "math"

// binomialCDF is P(B ≤ k) for B ~ Binomial(n, p), exact to about 1e-10 for n up to
// 10^8: the regularised incomplete beta function I_{1-p}(n-k, k+1) (DLMF 8.17.5).
func binomialCDF(k, n int64, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n || p <= 0:
		return 1
	case p >= 1:
		return 0
	}
	return betaRegularized(1-p, float64(n-k), float64(k+1))
}

// betaRegularized is I_x(a, b) by its continued fraction (DLMF 8.17.22), taken on the
// side of the mean where it converges fast.
func betaRegularized(x, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	ga, _ := math.Lgamma(a)
	gb, _ := math.Lgamma(b)
	gab, _ := math.Lgamma(a + b)
	front := math.Exp(gab - ga - gb + a*math.Log(x) + b*math.Log1p(-x))
	if x < (a+1)/(a+b+2) {
		return front * betaFraction(x, a, b) / a
	}
	return 1 - front*betaFraction(1-x, b, a)/b
}

// betaFraction evaluates the continued fraction from the front (Lentz's method, with
// Thompson and Barnett's guard against zero denominators). It needs about sqrt(a+b)
// terms.
func betaFraction(x, a, b float64) float64 {
	const tiny, epsilon = 1e-300, 1e-15
	guard := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/guard(1-(a+b)*x/(a+1))
	f := d
	for m := 1.0; m < 100_000; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d = 1 / guard(1+even*d)
		c = guard(1 + even/c)
		f *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d = 1 / guard(1+odd*d)
		c = guard(1 + odd/c)
		f *= d * c
		if math.Abs(d*c-1) < epsilon {
			break
		}
	}
	return f
}

// MLPerfConfidence is the confidence of MLPerf's early stopping.
const MLPerfConfidence = 0.99

// EarlyStopping is how many requests a run needs, when over of them exceeded the
// bound, to say with the given confidence that the true percentile is at most the
// bound: the least over+h for which P(Binomial(over+h, 1-percentile/100) ≤ over) is
// under 1-confidence. It is MLPerf Inference's rule for the Server scenario
// (loadgen/early_stopping.cc with tolerance 0 and confidence 0.99), and like it
// takes requests for independent. With none over, a 99th percentile needs 459.
// 0 if the arguments are no percentile, confidence and count.
func EarlyStopping(over int64, percentile, confidence float64) int64 {
	q := percentile / 100
	if over < 0 || !(q > 0 && q < 1) || !(confidence > 0 && confidence < 1) {
		return 0
	}
	rare := func(n int64) bool { return binomialCDF(over, n, 1-q) < 1-confidence }
	low := over
	high := over + int64(math.Ceil(math.Log(1-confidence)/math.Log(q))) + 1
	for !rare(high) {
		low, high = high, 2*high
	}
	for high-low > 1 { // not rare at low, rare at high
		if mid := low + (high-low)/2; rare(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}
