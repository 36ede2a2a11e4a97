package rig

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"

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

// clockTicks is USER_HZ, in which Linux counts: 100 on every architecture that Go
// runs on.
const clockTicks = 100

// cpuSeconds is what a process has used, user and system.
func cpuSeconds(pid int) (float64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may contain anything; fields 14 and 15 of the line are
	// the 12th and 13th after it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks float64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseFloat(string(field), 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return ticks / clockTicks, nil
}
