package kvcache_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 0},
			{snapshot, 1, 3, []kvcache.Hash{1, 2, 3}, true, 3},
			{event, 1, 4, []kvcache.Hash{4}, true, 3},
		},
		"an event that no worker sent costs one snapshot": {
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 1, 1 << 60, []kvcache.Hash{9}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 0},
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
		"a gap drops": {
			{snapshot, 1, 1, []kvcache.Hash{1}, true, 1},
			{event, 1, 3, []kvcache.Hash{3}, false, 0},
			{snapshot, 1, 4, []kvcache.Hash{1, 2, 3}, true, 3},
		},
		"a snapshot drops what is held back of other epochs": {
			{event, 2, 5, []kvcache.Hash{3}, false, 0},
			{event, 1, 3, []kvcache.Hash{3}, false, 0},
			{snapshot, 1, 1, []kvcache.Hash{1}, false, 0},
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
	if n := x.Len(); n != 4 {
		t.Errorf("%d blocks", n)
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

// message is something on its way from a worker to the index.
type message struct {
	snapshot        bool
	worker          string
	epoch, sequence uint64
	stored, removed []kvcache.Hash
}

// position is a point in a worker's history. The zero value is no point.
type position struct{ epoch, sequence uint64 }

// cluster is some workers, a network that loses, doubles and reorders, and the
// simplest index that could be right.
type cluster struct {
	index   *kvcache.Index
	bound   int
	workers map[string]*clusterWorker
	network []message
	epochs  uint64
}

type clusterWorker struct {
	now     position
	cache   map[kvcache.Hash]bool
	history map[position]map[kvcache.Hash]bool

	known   position // what the index should know of it
	pending map[position]bool
}

func (c *cluster) worker(t *rapid.T) (string, *clusterWorker) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "worker")
	w := c.workers[name]
	if w == nil {
		w = &clusterWorker{history: map[position]map[kvcache.Hash]bool{}, pending: map[position]bool{}}
		c.workers[name] = w
		c.boot(w)
	}
	return name, w
}

func (c *cluster) boot(w *clusterWorker) {
	c.epochs++
	w.now, w.cache = position{epoch: c.epochs}, map[kvcache.Hash]bool{}
	w.history[w.now] = map[kvcache.Hash]bool{}
}

func (c *cluster) restart(t *rapid.T) {
	_, w := c.worker(t)
	c.boot(w)
}

func (c *cluster) change(t *rapid.T) {
	name, w := c.worker(t)
	m := message{worker: name}
	for _, hash := range rapid.SliceOfNDistinct(anyHash, 0, 4, rapid.ID[kvcache.Hash]).Draw(t, "changed") {
		if w.cache[hash] {
			m.removed = append(m.removed, hash)
			delete(w.cache, hash)
		} else {
			m.stored = append(m.stored, hash)
			w.cache[hash] = true
		}
	}
	w.now.sequence++
	w.history[w.now] = maps.Clone(w.cache)
	m.epoch, m.sequence = w.now.epoch, w.now.sequence
	c.network = append(c.network, m)
}

func (c *cluster) snapshot(t *rapid.T) {
	name, w := c.worker(t)
	c.network = append(c.network, message{
		snapshot: true, worker: name, epoch: w.now.epoch, sequence: w.now.sequence,
		stored: slices.Collect(maps.Keys(w.cache)),
	})
}

func (c *cluster) deliver(t *rapid.T) {
	if len(c.network) == 0 {
		t.Skip("nothing on its way")
	}
	i := 0
	if rapid.IntRange(0, 9).Draw(t, "out of order") == 0 {
		i = rapid.IntRange(0, len(c.network)-1).Draw(t, "message")
	}
	m := c.network[i]
	fate := rapid.IntRange(0, 9).Draw(t, "fate")
	if fate != 0 { // else doubled
		c.network = slices.Delete(c.network, i, i+1)
	}
	if fate == 1 {
		return // lost
	}
	w := c.workers[m.worker]
	var got bool
	if m.snapshot {
		got = c.index.Snapshot(m.worker, m.epoch, m.sequence, m.stored)
		w.expectSnapshot(position{m.epoch, m.sequence})
	} else {
		got = c.index.Apply(m.worker, m.epoch, m.sequence, m.stored, m.removed)
		w.expectEvent(position{m.epoch, m.sequence})
	}
	if want := w.known != (position{}); got != want || c.index.InSync(m.worker) != want {
		t.Fatalf("in sync: %v, want %v", got, want)
	}
}

func (w *clusterWorker) expectEvent(at position) {
	switch {
	case w.known.epoch == at.epoch && at.sequence <= w.known.sequence:
	case w.known.epoch == at.epoch && at.sequence == w.known.sequence+1:
		w.known = at
	default:
		w.known = position{}
		w.pending[at] = true
	}
}

func (w *clusterWorker) expectSnapshot(at position) {
	if w.known.epoch == at.epoch && at.sequence <= w.known.sequence {
		return
	}
	for w.pending[position{at.epoch, at.sequence + 1}] {
		at.sequence++
	}
	w.known = at
	for p := range w.pending {
		if p.epoch == at.epoch && p.sequence > at.sequence {
			w.known = position{}
		}
	}
	clear(w.pending)
}

func (c *cluster) forget(t *rapid.T) {
	name, w := c.worker(t)
	c.index.Forget(name)
	w.known = position{}
	clear(w.pending)
}

func (c *cluster) check(t *rapid.T) {
	hashes := rapid.SliceOfN(anyHash, 0, 8).Draw(t, "hashes")
	want := map[string]int{}
	for name, w := range c.workers {
		if w.known == (position{}) {
			continue
		}
		n := 0
		for n < len(hashes) && w.history[w.known][hashes[n]] {
			n++
		}
		if n > 0 {
			want[name] = n
		}
	}
	got := c.index.Match(hashes)
	if c.bound > len(allHashes) && !maps.Equal(got, want) {
		t.Fatalf("%v: %v, want %v", hashes, got, want)
	}
	for name, n := range got {
		if n > want[name] {
			t.Fatalf("%v: %v, more than %v", hashes, got, want)
		}
	}
	if c.index.Len() > c.bound {
		t.Fatalf("%d blocks, more than %d", c.index.Len(), c.bound)
	}
}

var (
	allHashes = []kvcache.Hash{1, 2, 3, 4, 5, 6, 7, 8}
	anyHash   = rapid.SampledFrom(allHashes)
)

func TestIndexAgainstModel(t *testing.T) {
	for name, bound := range map[string]int{"large": 1000, "small": 3} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := &cluster{
					index:   kvcache.NewIndex(bound),
					bound:   bound,
					workers: map[string]*clusterWorker{},
				}
				t.Repeat(map[string]func(*rapid.T){
					"":         c.check,
					"change":   c.change,
					"change2":  c.change,
					"snapshot": c.snapshot,
					"deliver":  c.deliver,
					"deliver2": c.deliver,
					"deliver3": c.deliver,
					"restart":  c.restart,
					"forget":   c.forget,
				})
			})
		})
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
