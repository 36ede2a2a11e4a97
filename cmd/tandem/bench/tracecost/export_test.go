package tracecost

// StudentT is studentT.
func StudentT(v float64) float64 { return studentT(v) }

// IntervalOf is intervalOf.
func IntervalOf(values []float64) Interval { return intervalOf(values) }
