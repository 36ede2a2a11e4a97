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

// Cores are the numbers of the cores that this process may use, rising; nil: the
// system does not say. They need not begin at 0, nor be without gaps.
func Cores() []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var all []int
	for core := range 64 * len(set) { // the set's words have 64 bits at most
		if set.IsSet(core) {
			all = append(all, core)
		}
	}
	return all
}

// On calls start on a thread that may run on the given cores only, as may then the
// processes that it starts; nil: on any. It returns what start does, which is not
// called if there is no such thread.
func On(cores []int, start func() error) error {
	if cores == nil {
		return start()
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so that no other one ever
		// runs on those cores alone.
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

// CPUSeconds is what a process has used, user and system: its CPU clock, made of its
// id as clock_getcpuclockid(3) does. It counts nanoseconds, where /proc/PID/stat has
// ticks of 10 ms.
func CPUSeconds(pid int) (float64, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return float64(used.Nano()) / 1e9, nil
}

// statPath is where the kernel says how long each core was busy, and ticksPerSecond its
// unit there, which is the same on every architecture that Go runs on.
const (
	statPath       = "/proc/stat"
	ticksPerSecond = 100
)

// Busy is the processor time that all processes, and what the hypervisor took, have
// used on cores since the machine began, seconds; false: the system does not say.
func Busy(cores []int) (float64, bool) {
	text, err := os.ReadFile(statPath)
	if err != nil {
		return 0, false
	}
	return busy(string(text), cores)
}

// busy reads the lines "cpuN user nice system idle iowait irq softirq steal …" of the
// cores; guests' time is in user already.
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

// ThreadTime is the processor time that the calling thread has used; false: the system
// does not say.
func ThreadTime() (time.Duration, bool) {
	var used unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used)
	return time.Duration(used.Nano()), err == nil
}
