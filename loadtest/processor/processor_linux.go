package processor

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cores returns the numbers of the cores this process may use, ascending; nil: unknown.
// They need not start at 0 or be contiguous.
func Cores() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var all []int
	for core := range 64 * len(set) { // the set's words have at most 64 bits
		if set.IsSet(core) {
			all = append(all, core)
		}
	}
	return all
}

// On calls start on a thread bound to the given cores, which processes it starts inherit;
// nil: any core. It returns start's result. If no such thread is possible, it does not
// call start.
func On(cores []int, start func() error) error {
	if cores == nil {
		return start()
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so that no other goroutine
		// is bound to those cores.
		runtime.LockOSThread()
		var wanted unix.CPUSet
		for _, core := range cores {
			wanted.Set(core)
		}
		if err := unix.SchedSetaffinity(0, &wanted); err != nil {
			result <- fmt.Errorf("run on cores %v: %w", cores, err)
			return
		}
		result <- start()
	}()
	return <-result
}

// CPUSeconds is the user and system time a process has used, from its CPU clock, whose id
// is computed as in clock_getcpuclockid(3). It has nanosecond resolution, where
// /proc/PID/stat has 10 ms.
func CPUSeconds(pid int) (float64, error) {
	const scheduled = 2 // the kernel's CPUCLOCK_SCHED
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return float64(used.Nano()) / 1e9, nil
}

// statPath has the busy time of each core in units of 1/ticksPerSecond, which is the same
// on every architecture that Go supports.
const (
	statPath       = "/proc/stat"
	ticksPerSecond = 100
)

// Busy is the processor time used on cores by all processes and the hypervisor since
// boot, seconds; ok is false if unknown.
func Busy(cores []int) (float64, bool) {
	text, err := os.ReadFile(statPath)
	if err != nil {
		return 0, false
	}
	return busy(string(text), cores)
}

// busy parses the lines "cpuN user nice system idle iowait irq softirq steal …". user
// includes guests' time.
func busy(stat string, cores []int) (seconds float64, ok bool) {
	found := 0
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		core, err := strconv.Atoi(fields[0][len("cpu"):])
		if err != nil || !slices.Contains(cores, core) {
			continue
		}
		found++
		for i, field := range fields[1:9] {
			const idle, iowait = 3, 4
			ticks, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return 0, false
			}
			if i != idle && i != iowait {
				seconds += float64(ticks) / ticksPerSecond
			}
		}
	}
	return seconds, found > 0 && found == len(cores)
}

// ThreadTime is the processor time used by the calling thread; ok is false if unknown.
func ThreadTime() (time.Duration, bool) {
	var used unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used)
	return time.Duration(used.Nano()), err == nil
}
