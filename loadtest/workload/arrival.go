package workload

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrival processes.
const (
	// Poisson: exponential gaps, as of many independent users.
	Poisson = "poisson"
	// Gamma: gaps are gamma-distributed.
	Gamma = "gamma"
	// Constant: gaps are equal.
	Constant = "constant"
	// Ramp: Poisson with a rate that rises or falls linearly over the run.
	Ramp = "ramp"
)

// arrivals generates due times. The first gap begins at the start of the run, so that a
// Poisson process is one from the start.
type arrivals struct {
	random  *rand.Rand
	process string
	// rate in requests per second; for a ramp from and rate are those at its start and
	// end.
	rate, from float64
	// shape of the gamma distribution of gaps.
	shape float64
	// until is the run's duration in seconds, 0: unlimited.
	until float64
	// at is the time of the last request in seconds; for a ramp, the expected number of
	// requests until then.
	at    float64
	count int
	// closed: closed loop, all due at once.
	closed bool
	// surges change the rate for a while; not of a ramp.
	surges surges
}

// next is the next due time; false after the end of the run.
func (a *arrivals) next() (time.Duration, bool) {
	if a.closed {
		return 0, true
	}
	var seconds float64
	switch a.process {
	case Constant:
		seconds = float64(a.count) / a.rate
	case Ramp:
		a.at += a.random.ExpFloat64()
		var ok bool
		if seconds, ok = a.inverse(a.at); !ok {
			return 0, false
		}
	case Gamma:
		// As `vllm bench serve --burstiness` (vllm/benchmarks/serve.py, get_request): the
		// shape is the burstiness and the scale 1/(rate·burstiness), so the mean gap is
		// 1/rate and the coefficient of variation 1/√burstiness.
		a.at += gamma(a.random, a.shape) / (a.rate * a.shape)
		seconds = a.at
	default:
		a.at += a.random.ExpFloat64() / a.rate
		seconds = a.at
	}
	a.count++
	seconds = a.surges.inverse(seconds)
	if a.until > 0 && seconds > a.until || seconds > math.MaxInt64/float64(time.Second) {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// inverse is when a ramp has had so many expected requests; false if it ends before. With
// λ(t) = f + (r−f)·t/T the expectation is Λ(t) = f·t + (r−f)·t²/2T. Unit-rate Poisson
// times mapped by Λ⁻¹ are a Poisson process of rate λ (Çinlar, "Introduction to
// Stochastic Processes", 1975, ch. 4.7). This form of the root avoids cancellation.
func (a *arrivals) inverse(expected float64) (float64, bool) {
	if expected > a.until*(a.from+a.rate)/2 {
		return 0, false
	}
	slope := (a.rate - a.from) / a.until
	return 2 * expected / (a.from + math.Sqrt(max(0, a.from*a.from+2*slope*expected))), true
}

// gamma returns a gamma-distributed number of scale 1 (Marsaglia and Tsang, "A simple
// method for generating gamma variables", ACM TOMS 26(3), 2000; shapes below 1 by their
// section 6).
func gamma(random *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(random, shape+1) * math.Exp2(math.Log2(1-random.Float64())/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := random.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - random.Float64() // above 0
		if math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
