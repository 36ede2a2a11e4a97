package rig

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// onCores calls start on a thread that may run on the given cores only, as may then
// the processes that it starts; nil: on any.
func onCores(cores []int, start func() error) error {
	if cores == nil {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, wanted unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the thread's cores: %w", err)
	}
	for _, core := range cores {
		wanted.Set(core)
	}
	if err := unix.SchedSetaffinity(0, &wanted); err != nil {
		return fmt.Errorf("run on cores %v: %w", cores, err)
	}
	err := start()
	if back := unix.SchedSetaffinity(0, &before); back != nil && err == nil {
		err = fmt.Errorf("return to all cores: %w", back)
	}
	return err
}

// cpuSeconds is what a process has used, user and system: its CPU clock, made of
// its id as clock_getcpuclockid(3) does. It counts nanoseconds, where
// /proc/PID/stat has ticks of 10 ms.
func cpuSeconds(pid int) (float64, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return float64(used.Nano()) / 1e9, nil
}
