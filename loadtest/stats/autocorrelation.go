package stats

import "math"

// maxLagged bounds the work of AutocorrelationTime, which is quadratic.
const maxLagged = 2048

// AutocorrelationTime is the integrated autocorrelation time τ = 1 + 2·Σρ(k) of a
// stationary series: the mean of n values has the variance of n/τ independent ones. The
// sum is truncated where sums of adjacent autocovariances stop being positive and
// decreasing (the initial monotone sequence of C. J. Geyer, Practical Markov chain Monte
// Carlo, Statistical Science 7(4), 1992). At least 1; 1 for a constant.
func AutocorrelationTime(series []float64) float64 {
	n := len(series)
	if n < 4 {
		return 1
	}
	if n > maxLagged {
		// Use means of consecutive values: correlation within a block is in their
		// variance, the rest in their τ.
		means := blockMeans(series, maxLagged)
		all, blocks := variance(series), variance(means)
		if all == 0 {
			return 1
		}
		perBlock := float64(n) / float64(len(means))
		return max(1, perBlock*blocks/all*AutocorrelationTime(means))
	}
	mean := Mean(series)
	covariance := func(lag int) float64 {
		sum := 0.0
		for i := lag; i < n; i++ {
			sum += (series[i] - mean) * (series[i-lag] - mean)
		}
		return sum / float64(n)
	}
	zero := covariance(0)
	if zero <= 1e-15*(1+mean*mean) {
		return 1
	}
	sum, last := 0.0, math.Inf(1)
	for lag := 0; lag+1 < n; lag += 2 {
		pair := covariance(lag) + covariance(lag+1)
		if pair <= 0 {
			break
		}
		last = min(last, pair)
		sum += last
	}
	tau := 2*sum/zero - 1
	if tau <= 1 {
		return 1
	}
	// Subtracting the sample mean hides some correlation: to first order the variance is
	// too small by τ/n.
	return min(float64(n), tau/max(1-tau/float64(n), 0.25))
}

// blockMeans returns the means of at most blocks parts of equal length. The remainder
// joins the last.
func blockMeans(series []float64, blocks int) []float64 {
	size := (len(series) + blocks - 1) / blocks
	means := make([]float64, len(series)/size)
	for b := range means {
		stretch := series[b*size:]
		if b < len(means)-1 {
			stretch = stretch[:size]
		}
		means[b] = Mean(stretch)
	}
	return means
}

// variance is that of the values themselves.
func variance(series []float64) float64 {
	mean, sum := Mean(series), 0.0
	for _, v := range series {
		sum += (v - mean) * (v - mean)
	}
	return sum / float64(len(series))
}

// EffectiveSize is the number of independent samples with the same variance of the share
// that is at most some value, and so of the quantile at that share. Groups are in order
// of time: totals[i] values, hits[i] of them at most the quantile; groups of one are a
// plain series. Requests in one queue are correlated, so near capacity it is far below
// their number.
//
// With e = hits - share·totals, the variance of the share is Σe²·τ(e)/(Σtotals)² (a ratio
// estimator: W. G. Cochran, Sampling Techniques, 3rd ed., section 6.3), and the size is
// share·(1-share) over it. A quantile's estimate depends on the series only through this
// variance: P. Heidelberger and P. A. W. Lewis, Quantile estimation in dependent
// sequences, Operations Research 32(1), 1984. At least 1 and at most the number of
// values.
func EffectiveSize(hits, totals []float64) float64 {
	n, under := 0.0, 0.0
	for i := range totals {
		n += totals[i]
		under += hits[i]
	}
	if n == 0 {
		return 0
	}
	share := under / n
	errors, squares := make([]float64, len(totals)), 0.0
	for i := range totals {
		errors[i] = hits[i] - share*totals[i]
		squares += errors[i] * errors[i]
	}
	if squares == 0 {
		return n
	}
	return min(n, max(1, share*(1-share)*n*n/(squares*AutocorrelationTime(errors))))
}
