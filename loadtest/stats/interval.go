package stats

import (
	"math"
	"slices"
	"sort"
	"time"
)

// QuantileRanks are the ranks, from 1, of the two order statistics of n independent
// samples between which the true q-quantile lies with at least the given confidence,
// whatever the distribution is: the tails of Binomial(n, q), each at most half of
// what is left (H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section
// 7.1). ok is false if n is too small for both to exist.
func QuantileRanks(n int64, q, confidence float64) (low, high int64, ok bool) {
	tail := (1 - confidence) / 2
	if n < 1 || q <= 0 || q >= 1 || tail <= 0 || tail >= 0.5 {
		return 0, 0, false
	}
	// P(X_(k) > quantile) = P(B ≤ k-1): low is the last k where that is rare, high
	// the first where its opposite is.
	low = int64(sort.Search(int(n), func(i int) bool { return binomialCDF(int64(i), n, q) > tail }))
	high = int64(sort.Search(int(n), func(i int) bool { return binomialCDF(int64(i), n, q) >= 1-tail })) + 1
	return low, high, low >= 1 && high <= n
}

// QuantileNeeds is the least number of independent samples for which QuantileRanks
// finds an interval: 368 for the 99th percentile with 95% confidence. 0 if there is
// no such number.
func QuantileNeeds(q, confidence float64) int64 {
	tail := (1 - confidence) / 2
	if q <= 0 || q >= 1 || tail <= 0 || tail >= 0.5 {
		return 0
	}
	// The smallest sample lies above the quantile with (1-q)^n, the largest below it
	// with q^n: neither may happen more often than tail.
	return int64(math.Ceil(math.Log(tail) / math.Log(max(q, 1-q))))
}

// Interval is the confidence interval of the q-quantile of what h holds, if its
// samples are worth effective independent ones (see EffectiveSize): the order
// statistics that QuantileRanks finds for that many, at the same shares of all of
// h's. ok is false if there is none.
func (h *Histogram) Interval(q, effective, confidence float64) (low, high time.Duration, ok bool) {
	n := h.Count()
	size := min(effective, float64(n))
	if !(size >= 1) {
		return 0, 0, false
	}
	m := int64(size)
	l, u, ok := QuantileRanks(m, q, confidence)
	if !ok {
		return 0, 0, false
	}
	scale := float64(n) / float64(m)
	return h.AtRank(int64(float64(l) * scale)), h.AtRank(int64(math.Ceil(float64(u) * scale))), true
}

// Median is the middle one of some values, the mean of the middle two of an even number;
// there is at least one.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
