package search

import "github.com/tandem-serving/tandem/loadtest/measure"

const (
	// minKnee is the minimum number of rates for a knee.
	minKnee = 5
	// bend is how far the curve must fall below the chord from its first to its last
	// point, relative to its height, and rise how much the maximum must exceed the
	// minimum; less is noise.
	bend = 0.1
	rise = 1.5
)

// knee is the rate above which latency rises faster than the rate: where the curve of
// latency over rate, both scaled to 0 to 1, is furthest below its chord (Kneedle for a
// convex rising curve: V. Satopää, J. Albrecht, D. Irwin and B. Raghavan, Finding a
// "Kneedle" in a Haystack, ICDCS 2011). The latency is the highest percentile of TTFT
// that all rates have, or of E2E without TTFT. nil if there are too few rates or the
// curve does not bend.
func knee(rates []tried) *float64 {
	for _, of := range []func(*measure.Summary) *measure.Distribution{
		func(s *measure.Summary) *measure.Distribution { return s.TTFT },
		func(s *measure.Summary) *measure.Distribution { return s.E2E },
	} {
		for _, percentile := range []string{"p99", "p95", "p90", "p50"} {
			var x, y []float64
			for _, r := range rates {
				value := median(r.steps, func(s *measure.Summary) *float64 { return of(s).Percentile(percentile) })
				if value > 0 {
					x, y = append(x, r.rate), append(y, value)
				}
			}
			// Nothing may complete far beyond the breaking point.
			if len(x) >= minKnee && len(x)+1 >= len(rates) {
				return elbow(x, y)
			}
		}
	}
	return nil
}

// elbow is the x at which a rising curve bends upwards.
func elbow(x, y []float64) *float64 {
	last := len(x) - 1
	// Latency does not fall with load; an apparent fall is noise.
	for i := 1; i <= last; i++ {
		y[i] = max(y[i], y[i-1])
	}
	if y[last] < rise*y[0] {
		return nil
	}
	at, furthest := -1, bend
	for i := 1; i < last; i++ {
		below := (x[i]-x[0])/(x[last]-x[0]) - (y[i]-y[0])/(y[last]-y[0])
		if below > furthest {
			at, furthest = i, below
		}
	}
	if at < 0 {
		return nil
	}
	return &x[at]
}
