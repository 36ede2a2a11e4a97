package kvcache_test

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

func TestIndexMatch(t *testing.T) {
	x := kvcache.NewIndex(100)
	x.Snapshot("all", 1, 5, []kvcache.Hash{1, 2, 3, 4})
	x.Snapshot("two", 1, 5, []kvcache.Hash{1, 2, 4})
	x.Snapshot("end", 1, 5, []kvcache.Hash{2, 3, 4})
	for _, test := range []struct {
		hashes []kvcache.Hash
		want   map[string]int
	}{
		{[]kvcache.Hash{1, 2, 3, 4, 5}, map[string]int{"all": 4, "two": 2}},
		{[]kvcache.Hash{1}, map[string]int{"all": 1, "two": 1}},
		{[]kvcache.Hash{2, 3}, map[string]int{"all": 2, "two": 1, "end": 2}},
		{[]kvcache.Hash{9, 1}, map[string]int{}},
		{nil, map[string]int{}},
	} {
		if got := x.Match(test.hashes); !maps.Equal(got, test.want) {
			t.Errorf("%v: %v, want %v", test.hashes, got, test.want)
		}
	}
}

func TestIndexSync(t *testing.T) {
	type step struct {
		what     string
		epoch    uint64
		sequence uint64
		hashes   []kvcache.Hash
		inSync   bool
		blocks   int // of 1, 2, 3 held after it
	}
	event, snapshot := "event", "snapshot"
	for name, steps := range map[string][]step{
		"a new worker needs a snapshot": {
			{event, 1, 1, []kvcache.Hash{1}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 1, 2, []kvcache.Hash{2}, true, 2},
		},
		"events meanwhile are applied after it": {
			{event, 1, 3, []kvcache.Hash{3}, false, 0},
			{event, 1, 2, []kvcache.Hash{2}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 3},
		},
		"a gap behind the snapshot asks for another": {
			{event, 1, 3, []kvcache.Hash{3}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 1},
			{snapshot, 1, 3, []kvcache.Hash{1, 2, 3}, true, 3},
			{event, 1, 4, []kvcache.Hash{4}, true, 3},
		},
		"an event that no worker sent costs one snapshot": {
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 1, 1 << 60, []kvcache.Hash{9}, false, 1},
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 1},
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 1, 2, []kvcache.Hash{2}, true, 2},
		},
		"doubles are ignored": {
			{snapshot, 1, 7, []kvcache.Hash{1}, true, 1},
			{event, 1, 7, []kvcache.Hash{2}, true, 1},
			{event, 1, 8, []kvcache.Hash{2}, true, 2},
			{event, 1, 8, []kvcache.Hash{3}, true, 2},
			{snapshot, 1, 7, nil, true, 2},
		},
		"after a gap the old counts until the snapshot": {
			{snapshot, 1, 1, []kvcache.Hash{1, 3}, true, 1},
			{event, 1, 3, []kvcache.Hash{2}, false, 3},
			{event, 1, 2, []kvcache.Hash{4}, false, 3},
			{snapshot, 1, 4, []kvcache.Hash{2, 3}, true, 0},
		},
		"a snapshot drops what is held back of other epochs": {
			{event, 2, 5, []kvcache.Hash{3}, false, 0},
			{event, 1, 3, []kvcache.Hash{3}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 1},
			{snapshot, 2, 3, []kvcache.Hash{1, 2}, true, 2},
		},
		"a restart drops": {
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 2, 2, []kvcache.Hash{2}, false, 0},
			{snapshot, 2, 1, []kvcache.Hash{1}, true, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := kvcache.NewIndex(10)
			for i, s := range steps {
				var got bool
				if s.what == event {
					got = x.Apply("w", s.epoch, s.sequence, s.hashes, nil)
				} else {
					got = x.Snapshot("w", s.epoch, s.sequence, s.hashes)
				}
				if blocks := x.Match([]kvcache.Hash{1, 2, 3})["w"]; got != s.inSync || x.InSync("w") != got || blocks != s.blocks {
					t.Errorf("step %d: in sync %v with %d blocks, want %v with %d", i, got, blocks, s.inSync, s.blocks)
				}
			}
		})
	}
}

func TestIndexIsBounded(t *testing.T) {
	x := kvcache.NewIndex(4)
	x.Snapshot("a", 1, 1, []kvcache.Hash{1, 2, 3})
	x.Snapshot("b", 1, 1, []kvcache.Hash{11, 12, 13})
	if n, forgotten := x.Len(), x.Forgotten(); n != 4 || forgotten != 2 {
		t.Errorf("%d blocks, %d forgotten", n, forgotten)
	}
	// The older chain lost its end, not its beginning.
	if got := x.Match([]kvcache.Hash{1, 2, 3}); got["a"] != 1 {
		t.Errorf("%v", got)
	}
	x.Apply("b", 1, 2, []kvcache.Hash{14}, nil)
	x.Apply("b", 1, 3, []kvcache.Hash{15}, nil)
	if got := x.Match([]kvcache.Hash{1})["a"]; got != 1 {
		t.Error("what was used last was forgotten first")
	}
}

func TestIndexBoundsWhatIsPending(t *testing.T) {
	x := kvcache.NewIndex(10)
	for i := range uint64(10_000) {
		x.Apply("w", 1, i+2, []kvcache.Hash{kvcache.Hash(i)}, nil)
	}
	if x.Snapshot("w", 1, 1, nil) {
		t.Error("in sync although the events after the snapshot were too many to keep")
	}
	if !x.Snapshot("w", 1, 10_001, []kvcache.Hash{1}) {
		t.Error("not in sync after the last event's snapshot")
	}
}

// A snapshot in parts counts once it is whole, and not at all if one is missing.
func TestIndexTakesParts(t *testing.T) {
	x, all := kvcache.NewIndex(10), []kvcache.Hash{1, 2, 3}
	x.Snapshot("w", 1, 1, []kvcache.Hash{1})
	x.Apply("w", 1, 3, nil, nil)
	for _, test := range []struct {
		what          string
		part          bool
		sequence      uint64
		came          int
		hashes        []kvcache.Hash
		inSync        bool
		blocksOfThree int
	}{
		{"the first", true, 4, 0, []kvcache.Hash{3}, false, 1},
		{"the first of another", true, 5, 0, []kvcache.Hash{3}, false, 1},
		{"the rest of the first", false, 4, 1, []kvcache.Hash{1, 2}, false, 1},
		{"the rest of the other", false, 5, 1, []kvcache.Hash{1, 2}, false, 1},
		{"the first again", true, 5, 0, []kvcache.Hash{3}, false, 1},
		{"the last but one", true, 5, 1, []kvcache.Hash{2}, false, 1},
		{"the last", false, 5, 2, []kvcache.Hash{1}, true, 3},
	} {
		if test.part {
			x.Part("w", 1, test.sequence, test.came, test.hashes)
		} else {
			x.FinishSnapshot("w", 1, test.sequence, test.came, test.hashes)
		}
		if n := x.Match(all)["w"]; x.InSync("w") != test.inSync || n != test.blocksOfThree {
			t.Errorf("%s: %d blocks, in sync %v", test.what, n, x.InSync("w"))
		}
	}
}

// What workers held that are gone, or before a snapshot, is cleared by and by, and takes no
// place for ever.
func TestIndexClearsWhatIsOver(t *testing.T) {
	x := kvcache.NewIndex(100_000)
	hashes := make([]kvcache.Hash, 5000)
	for i := range hashes {
		hashes[i] = kvcache.Hash(i + 1)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		x.Snapshot(name, 1, 1, hashes[:4000])
		x.Snapshot(name, 1, 2, hashes[3000:])
		if got := x.Match(hashes[3000:])[name]; got != 2000 || x.Holds(name, hashes[0]) || !x.Holds(name, hashes[4999]) {
			t.Fatalf("%s holds %d", name, got)
		}
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		x.Forget(name)
	}
	for range 40 {
		x.Forget("nobody")
	}
	if x.Len() != 0 || x.Forgotten() != 0 {
		t.Errorf("%d blocks are left, %d forgotten", x.Len(), x.Forgotten())
	}
}

// Snapshots that replace each other, without an event in between, are cleared as fast as they come.
func TestIndexClearsSnapshotsTogether(t *testing.T) {
	x := kvcache.NewIndex(10000)
	x.SweepBy(64)
	hashes := make([]kvcache.Hash, 1000)
	for i := range hashes {
		hashes[i] = kvcache.Hash(i + 1)
	}
	workers := []string{"a", "b", "c", "d"}
	for sequence := range uint64(200) {
		for _, worker := range workers {
			if !x.Snapshot(worker, 1, sequence+1, hashes) {
				t.Fatal("not in sync")
			}
		}
	}
	if n := x.Slots(); n > 40 {
		t.Errorf("%d generations of %d workers", n, len(workers))
	}
	for _, worker := range workers {
		x.Forget(worker)
	}
	for x.Len() > 0 {
		x.Match(nil)
	}
}

// The parts of a snapshot that says nothing new are not taken in.
func TestIndexIgnoresPartsOfWhatItKnows(t *testing.T) {
	x := kvcache.NewIndex(100)
	x.Snapshot("a", 1, 5, []kvcache.Hash{1, 2})
	x.Part("a", 1, 5, 0, []kvcache.Hash{3})
	if n := x.Slots(); n != 1 {
		t.Errorf("%d generations of one worker", n)
	}
	if !x.FinishSnapshot("a", 1, 5, 1, []kvcache.Hash{4}) || x.Holds("a", 3) || !x.Holds("a", 1) {
		t.Error("it does not hold what it knew")
	}
}

func TestIndexForget(t *testing.T) {
	x := kvcache.NewIndex(10)
	x.Snapshot("a", 1, 1, []kvcache.Hash{1})
	x.Forget("a")
	x.Forget("a")
	x.Snapshot("b", 1, 1, []kvcache.Hash{2})
	if got := x.Match([]kvcache.Hash{1}); len(got) != 0 || x.Len() != 1 || x.InSync("a") {
		t.Errorf("%v, %d blocks", got, x.Len())
	}
}

func TestIndexMatchIntoDoesNotAllocate(t *testing.T) {
	x := kvcache.NewIndex(1000)
	hashes := kvcache.BlockHashes(1, make([]int32, 64), 1)
	for i := range 100 {
		x.Snapshot(fmt.Sprint("worker", i), 1, 1, hashes[:i%64])
	}
	dst := map[string]int{}
	if n := testing.AllocsPerRun(100, func() { x.MatchInto(dst, hashes) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkIndexMatch(b *testing.B) {
	x := kvcache.NewIndex(1 << 20)
	hashes := kvcache.BlockHashes(1, make([]int32, 256), 1)
	for i := range 1000 {
		x.Snapshot(fmt.Sprint("worker", i), 1, 1, hashes[:i%256])
	}
	dst := map[string]int{}
	b.ReportAllocs()
	for b.Loop() {
		x.MatchInto(dst, hashes)
	}
}

// What a million blocks take, each held by so many of 256 workers, or of 2,048.
func BenchmarkIndexMemory(b *testing.B) {
	const blocks = 1 << 20
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, workers := range []int{256, 2048} {
		for _, holders := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("workers=%d/holders=%d", workers, holders), func(b *testing.B) {
				for b.Loop() {
					before := heap()
					x := kvcache.NewIndex(blocks)
					each := blocks / workers
					for i := range workers {
						var held []kvcache.Hash
						for k := range holders {
							for j := range each {
								held = append(held, kvcache.Hash(uint64((i+k)%workers*each+j+1)*0x9e3779b97f4a7c15))
							}
						}
						x.Snapshot(fmt.Sprint("worker", i), 1, 1, held)
					}
					b.ReportMetric(float64(heap()-before)/1e6, "MB")
					b.ReportMetric(float64(x.Forgotten()), "forgotten")
					runtime.KeepAlive(x)
				}
			})
		}
	}
}

// How long the longest event takes while a million blocks get a third holder each, in processor
// time.
func BenchmarkIndexShares(b *testing.B) {
	const blocks, part = 1 << 20, 1024
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hashes := make([]kvcache.Hash, blocks)
	for i := range hashes {
		hashes[i] = kvcache.Hash(uint64(i+1) * 0x9e3779b97f4a7c15)
	}
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	for b.Loop() {
		x, longest := kvcache.NewIndex(blocks), time.Duration(0)
		for _, worker := range []string{"a", "b", "c"} {
			x.Snapshot(worker, 1, 0, nil)
			for at := 0; at < blocks; at += part {
				began := now()
				x.Apply(worker, 1, uint64(at/part+1), hashes[at:at+part], nil)
				longest = max(longest, now()-began)
			}
		}
		b.ReportMetric(float64(longest)/float64(time.Microsecond), "longest-us")
	}
}
