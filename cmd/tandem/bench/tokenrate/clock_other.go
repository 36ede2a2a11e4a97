//go:build !linux

package tokenrate

import "time"

const clockName = "wall"

// threadTime is the time of day: what the thread has used is not known here.
func threadTime() time.Duration { return time.Duration(time.Now().UnixNano()) }
