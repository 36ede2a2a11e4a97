package drive

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// collectAt is the heap from which on the collector runs, if memory allows.
	collectAt = 4 << 30
	// collectShare is the share of the memory that is available which the heap may have.
	collectShare = 4
)

// DeferCollector keeps Go's collector from running until the heap has 4 GiB, or a
// quarter of the memory that is available, and returns what undoes it. With one
// processor a cycle takes turns of up to 10 ms with the streams: at 8,000 of them the
// dispatch delay's p99 fell from 22 to 1.8 ms. It is a setting of the process, so the
// command that owns the process calls it, once, around its runs.
func DeferCollector() (restore func()) {
	limit := int64(collectAt)
	if available, known := memoryAvailable(); known {
		limit = min(limit, available/collectShare)
	}
	before := debug.SetMemoryLimit(-1)
	runtime.GC()
	debug.SetMemoryLimit(min(before, limit))
	percent := debug.SetGCPercent(-1)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(before)
	}
}

// memoryAvailable is the memory that a process may still take, bytes: the system's,
// or what the container's limit leaves.
func memoryAvailable() (int64, bool) {
	available, known := int64(math.MaxInt64), false
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) >= 2 && fields[0] == "MemAvailable:" {
				if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
					available, known = kib<<10, true
				}
			}
		}
	}
	if most, ok := number("/sys/fs/cgroup/memory.max"); ok {
		used, _ := number("/sys/fs/cgroup/memory.current")
		available, known = min(available, max(most-used, 0)), true
	}
	return available, known
}

// number is the only number in a file; none if it says "max".
func number(file string) (int64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
