package kvcache_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

type blockSet map[kvcache.Hash]bool

// position is a point in a worker's history. The zero value is no point.
type position struct{ epoch, sequence uint64 }

// event is a KV event on its way from a worker to the index.
type event struct {
	worker          string
	at              position
	stored, removed []kvcache.Hash
}

// listing is a snapshot on its way, in parts, which come in order. It may end early.
type listing struct {
	at    position
	came  int
	parts [][]kvcache.Hash // to come
}

// cluster is some workers, a network that loses, doubles and reorders events, and the
// simplest index that could be right.
type cluster struct {
	index   *kvcache.Index
	bound   int
	workers map[string]*clusterWorker
	network []event
	epochs  uint64
}

type clusterWorker struct {
	now     position
	cache   blockSet
	history map[position]blockSet
	listing *listing

	// What the index should know of it.
	known   position // zero: nothing
	synced  bool
	held    blockSet
	pending []event
}

func (c *cluster) worker(t *rapid.T) (string, *clusterWorker) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "worker")
	w := c.workers[name]
	if w == nil {
		w = &clusterWorker{history: map[position]blockSet{}}
		c.workers[name] = w
		c.boot(w)
	}
	return name, w
}

func (c *cluster) boot(w *clusterWorker) {
	c.epochs++
	w.now, w.cache, w.listing = position{epoch: c.epochs}, blockSet{}, nil
	w.history[w.now] = blockSet{}
}

func (c *cluster) restart(t *rapid.T) {
	_, w := c.worker(t)
	c.boot(w)
}

func (c *cluster) change(t *rapid.T) {
	name, w := c.worker(t)
	e := event{worker: name}
	for _, hash := range rapid.SliceOfNDistinct(anyHash, 0, 4, rapid.ID[kvcache.Hash]).Draw(t, "changed") {
		if w.cache[hash] {
			e.removed = append(e.removed, hash)
			delete(w.cache, hash)
		} else {
			e.stored = append(e.stored, hash)
			w.cache[hash] = true
		}
	}
	w.now.sequence++
	w.history[w.now] = maps.Clone(w.cache)
	e.at = w.now
	c.network = append(c.network, e)
}

// list begins a snapshot, in one to three parts. One that was on its way is cut off.
func (c *cluster) list(t *rapid.T) {
	_, w := c.worker(t)
	l := &listing{at: w.now}
	left := slices.Sorted(maps.Keys(w.cache))
	for range rapid.IntRange(0, 2).Draw(t, "parts") {
		n := rapid.IntRange(0, len(left)).Draw(t, "hashes")
		l.parts, left = append(l.parts, left[:n]), left[n:]
	}
	l.parts, w.listing = append(l.parts, left), l
}

// part delivers the next part of a snapshot.
func (c *cluster) part(t *rapid.T) {
	name, w := c.worker(t)
	l := w.listing
	if l == nil {
		t.Skip("none is on its way")
	}
	part := l.parts[0]
	if l.parts = l.parts[1:]; len(l.parts) > 0 {
		c.index.Part(name, l.at.epoch, l.at.sequence, l.came, part)
		l.came += len(part)
		return
	}
	w.listing = nil
	got := c.index.FinishSnapshot(name, l.at.epoch, l.at.sequence, l.came, part)
	w.expectSnapshot(l.at)
	c.compare(t, name, got)
}

func (c *cluster) deliver(t *rapid.T) {
	if len(c.network) == 0 {
		t.Skip("nothing on its way")
	}
	i := 0
	if rapid.IntRange(0, 9).Draw(t, "out of order") == 0 {
		i = rapid.IntRange(0, len(c.network)-1).Draw(t, "event")
	}
	e := c.network[i]
	fate := rapid.IntRange(0, 9).Draw(t, "fate")
	if fate != 0 { // else doubled
		c.network = slices.Delete(c.network, i, i+1)
	}
	if fate == 1 {
		return // lost
	}
	got := c.index.Apply(e.worker, e.at.epoch, e.at.sequence, e.stored, e.removed)
	c.workers[e.worker].expectEvent(e)
	c.compare(t, e.worker, got)
}

func (c *cluster) compare(t *rapid.T, name string, got bool) {
	w := c.workers[name]
	if got != w.synced || c.index.InSync(name) != w.synced {
		t.Fatalf("%s in sync: %v, want %v", name, got, w.synced)
	}
	if w.synced && !maps.Equal(w.held, w.history[w.known]) {
		t.Fatalf("the model of %s holds %v, which holds %v", name, w.held, w.history[w.known])
	}
}

func (w *clusterWorker) expectEvent(e event) {
	if w.known != (position{}) && w.known.epoch != e.at.epoch {
		w.known, w.synced, w.held = position{}, false, nil
	}
	if w.known != (position{}) {
		if e.at.sequence <= w.known.sequence && w.synced {
			return
		}
		w.synced = w.synced && e.at.sequence == w.known.sequence+1
		w.apply(e)
	}
	if !w.synced {
		w.pending = append(w.pending, e)
	}
}

func (w *clusterWorker) apply(e event) {
	if e.at.sequence <= w.known.sequence {
		return
	}
	w.known.sequence = e.at.sequence
	for _, hash := range e.stored {
		w.held[hash] = true
	}
	for _, hash := range e.removed {
		delete(w.held, hash)
	}
}

func (w *clusterWorker) expectSnapshot(at position) {
	if w.synced && w.known.epoch == at.epoch && at.sequence <= w.known.sequence {
		return
	}
	w.known, w.synced, w.held = at, true, maps.Clone(w.history[at])
	slices.SortStableFunc(w.pending, func(a, b event) int { return cmp.Compare(a.at.sequence, b.at.sequence) })
	for _, e := range w.pending {
		if e.at.epoch == at.epoch && e.at.sequence > w.known.sequence {
			w.synced = w.synced && e.at.sequence == w.known.sequence+1
			w.apply(e)
		}
	}
	w.pending = nil
}

func (c *cluster) forget(t *rapid.T) {
	name, w := c.worker(t)
	c.index.Forget(name)
	w.known, w.synced, w.held, w.pending = position{}, false, nil, nil
	w.listing = nil
}

func (c *cluster) check(t *rapid.T) {
	hashes := rapid.SliceOfN(anyHash, 0, 8).Draw(t, "hashes")
	want := map[string]int{}
	for name, w := range c.workers {
		n := 0
		for n < len(hashes) && w.held[hashes[n]] {
			n++
		}
		if n > 0 {
			want[name] = n
		}
		held := c.index.Blocks(name)
		if slices.Sort(held); c.bound > len(allHashes) && !slices.Equal(held, slices.Sorted(maps.Keys(w.held))) {
			t.Fatalf("%s holds %v, want %v", name, held, w.held)
		}
		for hash := range w.held {
			if c.bound > len(allHashes) && !c.index.Holds(name, hash) {
				t.Fatalf("%s does not hold %v", name, hash)
			}
		}
	}
	got := c.index.Match(hashes)
	if c.bound > len(allHashes) && (!maps.Equal(got, want) || c.index.Forgotten() > 0) {
		t.Fatalf("%v: %v, want %v, %d forgotten", hashes, got, want, c.index.Forgotten())
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

// The index against a plain one, through lost, doubled and late events, restarts, and snapshots
// that come in parts or not to their end.
func TestIndexAgainstModel(t *testing.T) {
	for name, bound := range map[string]int{"large": 1000, "small": 3} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := &cluster{
					index:   kvcache.NewIndex(bound),
					bound:   bound,
					workers: map[string]*clusterWorker{},
				}
				if rapid.Bool().Draw(t, "sweeps late") {
					c.index.SweepBy(1)
				}
				t.Repeat(map[string]func(*rapid.T){
					"":         c.check,
					"change":   c.change,
					"change2":  c.change,
					"list":     c.list,
					"part":     c.part,
					"part2":    c.part,
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
