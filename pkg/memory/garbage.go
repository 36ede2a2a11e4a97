package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// leastCollected is what the heap may grow to before its garbage is collected, bytes.
	leastCollected = 256 << 20
	// leastGarbage is how much garbage is let lie at least, percent of what lives.
	leastGarbage = 33
)

// CollectSeldom lets the heap grow to 256 MiB, and by a third of what lives, before garbage is
// collected, unless the user set GOGC. While Go collects, each goroutine that allocates first has to look
// through 64 KiB of the heap, and a router has several goroutines for each stream: on two busy cores,
// tokens came tens of milliseconds late, every two seconds. It is a third, and not as much again, since most
// of a large heap is what others make a router hold. A limit (KeepHeap, GOMEMLIMIT) holds all the same.
// getenv is os.Getenv. stop puts an end to it.
func CollectSeldom(getenv func(string) string) (stop func()) {
	if getenv("GOGC") != "" {
		return func() {}
	}
	var stopped atomic.Bool
	before := setPercent(&stopped)
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(before)
	}
}

// setPercent sets GOGC by what lives, now and after each collection: then Go calls the cleanup of an
// object that nobody holds.
func setPercent(stopped *atomic.Bool) (before int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	before = debug.SetGCPercent(Percent(live[0].Value.Uint64()))
	collected := new(*byte)
	runtime.AddCleanup(collected, func(stopped *atomic.Bool) {
		if !stopped.Load() {
			setPercent(stopped)
		}
	}, stopped)
	return before
}

// Percent is the GOGC of CollectSeldom for so many bytes that live.
func Percent(live uint64) int {
	live = max(live, 1<<20) // before the first collection
	return int(max(leastGarbage, 100*(leastCollected-min(live, leastCollected))/live))
}
