package stats

import "math"

// binomialCDF is P(B ≤ k) for B ~ Binomial(n, p), accurate to about 1e-10 for n up to
// 10^8, as the regularized incomplete beta function I_{1-p}(n-k, k+1) (DLMF 8.17.5).
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

// betaRegularized is I_x(a, b) by its continued fraction (DLMF 8.17.22), on the side of
// the mean where it converges fast.
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

// betaFraction evaluates the continued fraction forwards (Lentz's method, with Thompson
// and Barnett's guard against zero denominators) in about sqrt(a+b) terms.
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
