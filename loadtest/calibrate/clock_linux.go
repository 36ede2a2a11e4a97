package calibrate

import "golang.org/x/sys/unix"

// monotonicNow reads the machine's monotonic clock, nanoseconds.
func monotonicNow() int64 {
	var spec unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &spec) // cannot fail for this clock
	return spec.Nano()
}
