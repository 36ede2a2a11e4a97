//go:build !linux

package simulated

// newPreciseSleeper makes a sleeper that is as exact as Go's timers.
func newPreciseSleeper() (sleeper, error) { return timers{}, nil }
