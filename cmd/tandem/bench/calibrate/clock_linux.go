package calibrate

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// monotonicNow is the machine's monotonic clock, nanoseconds.
func monotonicNow() int64 {
	var spec unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &spec) // cannot fail for this clock
	return spec.Nano()
}

// cpuSeconds is what the process has used.
func cpuSeconds() float64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// cores are the CPUs that this process may use.
func cores() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var all []int
	for i := range 8 * len(set) * 8 {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	return all
}

// onCore calls start on a thread that may run on that core only, as may then the
// process that it starts; below 0: on any.
func onCore(core int, start func() error) error {
	if core < 0 {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, wanted unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the cores that may be used: %w", err)
	}
	wanted.Set(core)
	if err := unix.SchedSetaffinity(0, &wanted); err != nil {
		return fmt.Errorf("run on core %d: %w", core, err)
	}
	err := start()
	if back := unix.SchedSetaffinity(0, &before); err == nil && back != nil {
		err = fmt.Errorf("return to all cores: %w", back)
	}
	return err
}
