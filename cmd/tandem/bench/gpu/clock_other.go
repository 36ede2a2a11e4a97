//go:build !linux

package gpu

import "time"

// threadTime is 0: what a thread has used is not known here.
func threadTime() time.Duration { return 0 }
