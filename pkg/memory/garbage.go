package memory

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// leastCollected is what the heap may grow to before its garbage is collected, bytes.
	leastCollected = 256 << 20
	// leastGarbage is how many times as much lives as garbage is let lie, at most.
	leastGarbage = 3
	// followEvery is how often the setting follows what lives.
	followEvery = 200 * time.Millisecond
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
	percent := Percent(atLastCollection())
	before := debug.SetGCPercent(percent)
	var follows sync.WaitGroup
	stopping := make(chan struct{})
	follows.Go(func() {
		ticker := time.NewTicker(followEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-stopping:
				return
			}
			if now := Percent(atLastCollection()); now != percent {
				percent = now
				debug.SetGCPercent(percent)
			}
		}
	})
	return func() {
		close(stopping)
		follows.Wait()
		debug.SetGCPercent(before)
	}
}

// atLastCollection is how many bytes of the heap lived at the end of the last collection, and how many
// of stacks and globals it looked through.
func atLastCollection() (live, roots uint64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64(), sample[1].Value.Uint64() + sample[2].Value.Uint64()
}

// Percent is the GOGC of CollectSeldom for so many bytes that live, beside so many of stacks and globals:
// GOGC is a share of both (https://go.dev/doc/gc-guide#GOGC).
func Percent(live, roots uint64) int {
	live = max(live, 1<<20) // before the first collection
	garbage := max(live/leastGarbage, leastCollected-min(live, leastCollected))
	return int(max(100*garbage/(live+roots), 1))
}
