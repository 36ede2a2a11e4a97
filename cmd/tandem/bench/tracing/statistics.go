package tracing

import (
	"math"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// z is the 97.5% quantile of the normal distribution.
const z = 1.959963984540054

// studentT is the 97.5% quantile of Student's t with v degrees of freedom, at
// least 5, to 0.1% (Abramowitz and Stegun, Handbook of Mathematical Functions,
// 26.7.5).
func studentT(v float64) float64 {
	const z3, z5, z7 = z * z * z, z * z * z * z * z, z * z * z * z * z * z * z
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}

// Interval is a mean with the 95% confidence interval that Student's t gives it.
type Interval struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Median stands beside it: a few disturbed pairs do not move it.
	Median float64 `json:"median"`
}

// intervalOf is the interval of independent values, six at least.
func intervalOf(values []float64) Interval {
	n := float64(len(values))
	mean := stats.Mean(values)
	half := studentT(n-1) * math.Sqrt(stats.Variance(values)/n)
	return Interval{Mean: mean, Low: mean - half, High: mean + half, Median: stats.Median(values)}
}
