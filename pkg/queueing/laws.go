package queueing

import (
	"errors"
	"fmt"
	"math"
)

// Little is the mean number of requests in a system, or in a part of it, that come at rate
// and stay for the given mean time.
//
// It assumes only that the system is stable, as long averages are. Source: J. Little, "A
// Proof for the Queuing Formula: L = λW", Operations Research 9 (1961).
func Little(rate, seconds float64) (float64, error) {
	return rate * seconds, errors.Join(number("rate", rate), number("time", seconds))
}

// Amdahl is how many times faster work gets if its parallel share, 0 to 1, is spread over n
// servers, which may be a fraction.
//
// It assumes that the parallel share divides evenly, at no cost, and that the rest does not
// shrink. Source: G. Amdahl, "Validity of the single processor approach to achieving large
// scale computing capabilities", AFIPS (1967).
func Amdahl(parallel, n float64) (float64, error) {
	if !(parallel >= 0 && parallel <= 1) {
		return 0, fmt.Errorf("the parallel share is %v: it must be 0 to 1", parallel)
	}
	if !(n >= 1) {
		return 0, fmt.Errorf("%v servers: there must be at least 1", n)
	}
	return 1 / (1 - parallel + parallel/n), nil
}

// FanOut is the quantile that each of n calls must keep, so that the slowest of them keeps
// quantile q: q to the power 1/n. So for the p99 of 10 calls at once, each needs its p99.9.
//
// It assumes that the calls' times are independent. Source: J. Dean, L. Barroso, "The Tail
// at Scale", Communications of the ACM 56 (2013).
func FanOut(q float64, n int) (float64, error) {
	if !(q >= 0 && q <= 1) {
		return 0, fmt.Errorf("the quantile is %v: it must be 0 to 1", q)
	}
	if n < 1 {
		return 0, fmt.Errorf("%d calls: there must be at least 1", n)
	}
	return math.Pow(q, 1/float64(n)), nil
}

// Service is how long servers take for a request.
type Service struct {
	// Seconds is the mean.
	Seconds float64
	// SCV is the squared coefficient of variation.
	SCV float64
}

// ServiceOf is the mean and variation of times. Without times, or if all are 0, it is zero.
func ServiceOf(times []float64) Service {
	var s Service
	if len(times) == 0 {
		return s
	}
	n := float64(len(times))
	for _, t := range times {
		s.Seconds += t / n
	}
	if s.Seconds == 0 {
		return s
	}
	for _, t := range times {
		d := t/s.Seconds - 1
		s.SCV += d * d / n
	}
	return s
}
