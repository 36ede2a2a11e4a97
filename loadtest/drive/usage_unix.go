//go:build unix

package drive

import "golang.org/x/sys/unix"

// processCPUSeconds is the CPU time used by the process.
func processCPUSeconds() float64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
