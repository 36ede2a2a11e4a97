package kvcache

import (
	"cmp"
	"math/bits"
	"slices"
)

// Index is a router's view of the prefix caches of many workers: which worker
// holds which block. It is fed with each worker's numbered events and, whenever
// some of them are missing, with a snapshot. What it holds for a worker that is
// in sync is what that worker held at the last event applied, less what fell
// over the bound; for any other worker it holds nothing.
//
// An Index is not safe for concurrent use; Match counts as a use.
type Index struct {
	maxBlocks int
	workers   map[string]*indexWorker
	names     []string // by slot; "" is a free slot
	freeSlots []int
	entries   map[Hash]*indexEntry
	recent    indexEntry // ring: behind is the most recently used

	candidates bitset        // scratch of MatchInto
	path       []*indexEntry // scratch of MatchInto
}

// The bounds of what is kept for a worker between a gap and its snapshot.
const (
	maxPendingEvents = 256
	maxPendingHashes = 1 << 16
)

type indexWorker struct {
	slot            int
	synced          bool
	epoch, sequence uint64
	blocks          map[Hash]*indexEntry
	pending         []indexEvent
	pendingHashes   int
}

type indexEvent struct {
	epoch, sequence uint64
	stored, removed []Hash
}

// indexEntry is one block and the workers that hold it.
type indexEntry struct {
	hash           Hash
	workers        bitset // by slot
	before, behind *indexEntry
}

// NewIndex makes an index of at most maxBlocks different blocks, at least one.
// Over the bound the block that was not used for longest is forgotten, for all
// workers at once.
func NewIndex(maxBlocks int) *Index {
	x := &Index{
		maxBlocks: max(maxBlocks, 1),
		workers:   make(map[string]*indexWorker),
		entries:   make(map[Hash]*indexEntry),
	}
	x.recent.before, x.recent.behind = &x.recent, &x.recent
	return x
}

// Apply takes a worker's event: what was stored and removed since the one
// before. Events of one epoch are numbered without gaps; one that came before is
// ignored. False means that the index does not know what the worker holds, since
// it is new, has a new epoch, or an event was lost: its entries are dropped, and
// the caller asks the worker for a Snapshot. Until then events are kept, as many
// as the bound allows. The slices are not kept or changed.
func (x *Index) Apply(worker string, epoch, sequence uint64, stored, removed []Hash) (inSync bool) {
	w := x.worker(worker)
	if w.synced && w.epoch == epoch {
		if sequence <= w.sequence {
			return true
		}
		if sequence == w.sequence+1 {
			x.apply(w, sequence, stored, removed)
			return true
		}
	}
	x.drop(w)
	w.keep(indexEvent{epoch, sequence, slices.Clone(stored), slices.Clone(removed)})
	return false
}

// Snapshot takes everything that a worker held after the event with that number.
// Events that came meanwhile with higher numbers are applied after it. False
// means that one of those is missing: the caller asks for another snapshot. That
// one contains what lies beyond the gap, so it is dropped here; an event that no
// worker ever sent is gone with it. A snapshot older than what the index knows
// already is ignored. The slice is not kept or changed.
func (x *Index) Snapshot(worker string, epoch, sequence uint64, hashes []Hash) (inSync bool) {
	w := x.worker(worker)
	if w.synced && w.epoch == epoch && sequence <= w.sequence {
		return true
	}
	x.drop(w)
	pending := w.pending
	w.pending, w.pendingHashes = nil, 0
	w.synced, w.epoch = true, epoch
	x.apply(w, sequence, hashes, nil)
	// Events of other epochs are of no use to what is known from here on.
	pending = slices.DeleteFunc(pending, func(e indexEvent) bool { return e.epoch != epoch })
	slices.SortStableFunc(pending, func(a, b indexEvent) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, e := range pending {
		if e.sequence <= w.sequence {
			continue
		}
		if e.sequence > w.sequence+1 {
			x.drop(w)
			return false
		}
		x.apply(w, e.sequence, e.stored, e.removed)
	}
	return true
}

// Forget drops a worker that is gone.
func (x *Index) Forget(worker string) {
	w, ok := x.workers[worker]
	if !ok {
		return
	}
	x.drop(w)
	delete(x.workers, worker)
	x.names[w.slot] = ""
	x.freeSlots = append(x.freeSlots, w.slot)
}

// Match is, for each worker that holds the first of hashes, how many of them it
// holds without a gap.
func (x *Index) Match(hashes []Hash) map[string]int {
	return x.MatchInto(make(map[string]int), hashes)
}

// MatchInto is Match into a map of the caller's, which it clears first and
// returns.
func (x *Index) MatchInto(dst map[string]int, hashes []Hash) map[string]int {
	clear(dst)
	x.candidates, x.path = x.candidates[:0], x.path[:0]
	for depth, hash := range hashes {
		e, ok := x.entries[hash]
		if !ok {
			break
		}
		if depth == 0 {
			x.candidates = append(x.candidates, e.workers...)
		}
		// Who is not here has its answer; the others go on.
		alive := false
		for i := range x.candidates {
			var here uint64
			if i < len(e.workers) {
				here = e.workers[i]
			}
			x.answer(dst, i, x.candidates[i]&^here, depth)
			x.candidates[i] &= here
			alive = alive || x.candidates[i] != 0
		}
		if !alive {
			break
		}
		x.path = append(x.path, e)
	}
	for i, word := range x.candidates {
		x.answer(dst, i, word, len(x.path))
	}
	// The first block last, so that a chain is forgotten from its end.
	for _, e := range slices.Backward(x.path) {
		x.touch(e)
	}
	clear(x.path)
	return dst
}

func (x *Index) answer(dst map[string]int, wordIndex int, word uint64, depth int) {
	for ; word != 0; word &= word - 1 {
		dst[x.names[64*wordIndex+bits.TrailingZeros64(word)]] = depth
	}
}

// Len is the number of different blocks that the index holds.
func (x *Index) Len() int { return len(x.entries) }

// InSync says whether the index knows what the worker holds.
func (x *Index) InSync(worker string) bool {
	w, ok := x.workers[worker]
	return ok && w.synced
}

func (x *Index) worker(name string) *indexWorker {
	if w, ok := x.workers[name]; ok {
		return w
	}
	w := &indexWorker{blocks: make(map[Hash]*indexEntry)}
	if n := len(x.freeSlots); n > 0 {
		w.slot, x.freeSlots = x.freeSlots[n-1], x.freeSlots[:n-1]
		x.names[w.slot] = name
	} else {
		w.slot = len(x.names)
		x.names = append(x.names, name)
	}
	x.workers[name] = w
	return w
}

// keep holds an event back until a snapshot. Over the bound the oldest go: the
// gap that they leave asks for one more snapshot.
func (w *indexWorker) keep(e indexEvent) {
	w.pending = append(w.pending, e)
	w.pendingHashes += len(e.stored) + len(e.removed)
	for len(w.pending) > maxPendingEvents || w.pendingHashes > maxPendingHashes {
		w.pendingHashes -= len(w.pending[0].stored) + len(w.pending[0].removed)
		w.pending = slices.Delete(w.pending, 0, 1)
	}
}

func (x *Index) apply(w *indexWorker, sequence uint64, stored, removed []Hash) {
	w.sequence = sequence
	for _, hash := range removed {
		if e, ok := w.blocks[hash]; ok {
			x.clear(w, e)
		}
	}
	// Parents come first and become the more recently used.
	for _, hash := range slices.Backward(stored) {
		e, ok := x.entries[hash]
		if !ok {
			e = &indexEntry{hash: hash}
			e.before, e.behind = e, e
			x.entries[hash] = e
		}
		e.workers.set(w.slot)
		w.blocks[hash] = e
		x.touch(e)
		if len(x.entries) > x.maxBlocks {
			x.forget(x.recent.before)
		}
	}
}

// drop forgets what a worker holds.
func (x *Index) drop(w *indexWorker) {
	w.synced = false
	for _, e := range w.blocks {
		x.clear(w, e)
	}
}

// clear takes one block from one worker.
func (x *Index) clear(w *indexWorker, e *indexEntry) {
	delete(w.blocks, e.hash)
	e.workers.unset(w.slot)
	if e.workers.empty() {
		x.forget(e)
	}
}

// forget takes one block from all workers.
func (x *Index) forget(e *indexEntry) {
	for i, word := range e.workers {
		for ; word != 0; word &= word - 1 {
			delete(x.workers[x.names[64*i+bits.TrailingZeros64(word)]].blocks, e.hash)
		}
	}
	e.before.behind, e.behind.before = e.behind, e.before
	delete(x.entries, e.hash)
}

// touch makes an entry the most recently used.
func (x *Index) touch(e *indexEntry) {
	e.before.behind, e.behind.before = e.behind, e.before
	e.before, e.behind = &x.recent, x.recent.behind
	e.before.behind, e.behind.before = e, e
}

// bitset is a set of small numbers.
type bitset []uint64

func (s *bitset) set(i int) {
	for len(*s) <= i/64 {
		*s = append(*s, 0)
	}
	(*s)[i/64] |= 1 << (i % 64)
}

func (s bitset) unset(i int) {
	if i/64 < len(s) {
		s[i/64] &^= 1 << (i % 64)
	}
}

func (s bitset) empty() bool {
	for _, word := range s {
		if word != 0 {
			return false
		}
	}
	return true
}
