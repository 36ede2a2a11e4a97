package stats

import "math"

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
