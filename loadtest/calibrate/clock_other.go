//go:build !linux

package calibrate

import "time"

// monotonicNow is the wall clock where no monotonic one is shared by processes.
func monotonicNow() int64 { return time.Now().UnixNano() }
