package stats

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// Confidence is the level of every percentile's interval, and so of QuantileNeeds.
const Confidence = 0.95

// outside is the share that an interval leaves out at each end.
const outside = (1 - Confidence) / 2

// Milliseconds is a duration in milliseconds, with its fraction.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// QuantileRanks returns the ranks, from 1, of two order statistics of n independent
// samples. The true q-quantile lies between them with at least Confidence, whatever the
// distribution. Each tail of Binomial(n, q) outside them is at most (1 - Confidence)/2
// (H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1). ok is false
// if n is too small.
func QuantileRanks(n int64, q float64) (low, high int64, ok bool) {
	if n < 1 || q <= 0 || q >= 1 {
		return 0, 0, false
	}
	// P(X_(k) > quantile) = P(B ≤ k-1). low is the last k for which that is at most
	// outside, high the first for which it is at least 1-outside.
	low = int64(sort.Search(int(n), func(i int) bool { return binomialCDF(int64(i), n, q) > outside }))
	high = int64(sort.Search(int(n), func(i int) bool { return binomialCDF(int64(i), n, q) >= 1-outside })) + 1
	return low, high, low >= 1 && high <= n
}

// QuantileNeeds is how many samples a percentile needs, everywhere in Tandem: the least
// number of independent ones for which QuantileRanks finds an interval. It is 6 for the
// median, 36 for p90, 72 for p95, 368 for p99 and 3,688 for p99.9; 0 if q is not within
// 0 and 1.
func QuantileNeeds(q float64) int64 {
	if q <= 0 || q >= 1 {
		return 0
	}
	// The smallest sample lies above the quantile with probability (1-q)^n, the largest
	// below it with q^n. Both must be at most outside.
	return int64(math.Ceil(math.Log(outside) / math.Log(max(q, 1-q))))
}

// Interval is the confidence interval of the q-quantile of h, whose samples are worth
// effective independent ones (see EffectiveSize). It scales the ranks of QuantileRanks
// for that many samples to all of h's. ok is false if there is none.
func (h *Histogram) Interval(q, effective float64) (low, high time.Duration, ok bool) {
	n := h.Count()
	size := min(effective, float64(n))
	if !(size >= 1) {
		return 0, 0, false
	}
	m := int64(size)
	l, u, ok := QuantileRanks(m, q)
	if !ok {
		return 0, 0, false
	}
	scale := float64(n) / float64(m)
	return h.AtRank(int64(float64(l) * scale)), h.AtRank(int64(math.Ceil(float64(u) * scale))), true
}

// Quantile of sorted values: the least that the share q of them, 0 to 1, does not exceed; 0 of
// none.
func Quantile[T any](sorted []T, q float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[QuantileIndex(len(sorted), q)]
}

// QuantileIndex is where Quantile is among n sorted values, at least one.
func QuantileIndex(n int, q float64) int {
	return max(int(math.Ceil(q*float64(n)-1e-6))-1, 0)
}

// QuantileOf is Quantile of values in any order, which it leaves as they are.
func QuantileOf[T cmp.Ordered](values []T, q float64) T {
	return Quantile(slices.Sorted(slices.Values(values)), q)
}

// Mean of values; 0 of none.
func Mean(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}

// Variance of what values were drawn from; 0 of fewer than two.
func Variance(values []float64) (variance float64) {
	mean := Mean(values)
	for _, v := range values {
		variance += (v - mean) * (v - mean) / max(float64(len(values)-1), 1)
	}
	return variance
}

// Median of at least one value: the middle one, or the mean of the middle two.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// MedianInterval is an interval of the median of whatever at least one value was drawn from,
// and its level of confidence: of the innermost pair of order statistics that has at least
// Confidence, else of the least and the greatest value, which is 1 - 2^(1-n).
func MedianInterval(values []float64) (low, high, confidence float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := int64(len(sorted))
	if l, h, ok := QuantileRanks(n, 0.5); ok {
		return sorted[l-1], sorted[h-1], Confidence
	}
	return sorted[0], sorted[n-1], 1 - math.Exp2(float64(1-n))
}
