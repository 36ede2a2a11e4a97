package stats

import "slices"

// Median is the middle one of some values, the mean of the middle two of an even number;
// there is at least one.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
