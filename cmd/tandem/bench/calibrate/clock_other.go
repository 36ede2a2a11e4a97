//go:build !linux

package calibrate

import "time"

// monotonicNow is the wall clock where no monotonic one is shared by processes.
func monotonicNow() int64 { return time.Now().UnixNano() }

// cpuSeconds is 0 where the system does not say.
func cpuSeconds() float64 { return 0 }

// cores are unknown: nothing is pinned.
func cores() []int { return nil }

// onCore calls start.
func onCore(_ int, start func() error) error { return start() }
