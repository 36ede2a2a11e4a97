package drive_test

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/drive"
)

func TestDeferCollectorIsUndone(t *testing.T) {
	percent := debug.SetGCPercent(77)
	defer debug.SetGCPercent(percent)
	restore := drive.DeferCollector()
	if limit := debug.SetMemoryLimit(-1); limit <= 0 || limit > 4<<30 {
		t.Errorf("the limit is %d bytes", limit)
	}
	if percent := debug.SetGCPercent(-1); percent != -1 {
		t.Errorf("the collector runs at %d%%", percent)
	}
	restore()
	if percent := debug.SetGCPercent(77); percent != 77 {
		t.Errorf("the collector runs at %d%% afterwards, 77%% before", percent)
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		t.Errorf("the limit is %d bytes afterwards, there was none", limit)
	}
}

// A limit that the user set, as by GOMEMLIMIT, is not raised.
func TestDeferCollectorKeepsALowerLimit(t *testing.T) {
	before := debug.SetMemoryLimit(64 << 20)
	defer debug.SetMemoryLimit(before)
	restore := drive.DeferCollector()
	if limit := debug.SetMemoryLimit(-1); limit != 64<<20 {
		t.Errorf("the limit is %d bytes, the user's was 64 MiB", limit)
	}
	restore()
}
