package drive_test

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/drive"
)

// withCollector runs a test with this collector setting instead of the environment's.
func withCollector(t *testing.T, percent int, limit int64) {
	t.Helper()
	percentBefore, limitBefore := debug.SetGCPercent(percent), debug.SetMemoryLimit(limit)
	t.Cleanup(func() {
		debug.SetGCPercent(percentBefore)
		debug.SetMemoryLimit(limitBefore)
	})
}

// available is more than the heap may grow by.
const available = 64 << 30

var garbage []byte

// cycles counts collections while 200 MB become garbage.
func cycles() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	for range 200 {
		garbage = make([]byte, 1<<20)
	}
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

func TestDeferCollector(t *testing.T) {
	withCollector(t, 100, math.MaxInt64)
	runtime.GC()
	if cycles() == 0 {
		t.Fatal("the collector did not run before")
	}
	restore := drive.DeferCollector(available)
	if n := cycles(); n != 0 {
		t.Errorf("the collector ran %d times", n)
	}
	restore()
	runtime.GC()
	if cycles() == 0 {
		t.Error("the collector does not run afterwards")
	}
	// It uses no physical memory, even if the process has used memory before.
	before := resident(t)
	defer drive.DeferCollector(available)()
	if taken := resident(t) - before; taken > 64<<20 {
		t.Errorf("it takes %d MiB", taken>>20)
	}
	if percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1); percent != 100 || limit != math.MaxInt64 {
		t.Errorf("the collector runs at %d%% and %d bytes", percent, limit)
	}
}

// The user's GOGC and GOMEMLIMIT stay in force.
func TestDeferCollectorLeavesSettingsAlone(t *testing.T) {
	for _, set := range []struct {
		percent int
		limit   int64
	}{{50, math.MaxInt64}, {100, 64 << 20}, {-1, 64 << 20}} {
		withCollector(t, set.percent, set.limit)
		runtime.GC()
		restore := drive.DeferCollector(available)
		if cycles() == 0 {
			t.Errorf("at %d%% and %d MiB the collector does not run", set.percent, set.limit>>20)
		}
		if percent, limit := debug.SetGCPercent(set.percent), debug.SetMemoryLimit(-1); percent != set.percent || limit != set.limit {
			t.Errorf("the collector runs at %d%% and %d bytes, was set to %d%% and %d", percent, limit, set.percent, set.limit)
		}
		restore()
	}
}

// resident is the process's resident memory, bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
