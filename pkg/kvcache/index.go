package kvcache

import (
	"cmp"
	"math"
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
	bySlot    []*indexWorker
	freeSlots []int

	// Blocks are numbered, and known by their numbers: a million of them hold no pointer for
	// the garbage collector to follow.
	byHash  hashTable
	entries []indexEntry // entries[recent]'s ring: behind is the most recently used
	free    int32        // the first of those that hold no block, by behind; recent: none is
	sharing []shared     // entries that several workers hold
	unused  []int32      // of sharing

	candidates bitset  // scratch of MatchInto
	path       []int32 // scratch of MatchInto
}

// recent is the entry that holds no block and begins the ring.
const recent = 0

// The bounds of what is kept for a worker between a gap and its snapshot.
const (
	maxPendingEvents = 256
	maxPendingHashes = 1 << 16
)

type indexWorker struct {
	slot            int
	synced          bool
	epoch, sequence uint64
	first           place // of its list; noPlace: it is empty
	pending         []indexEvent
	pendingHashes   int
}

type indexEvent struct {
	epoch, sequence uint64
	stored, removed []Hash
}

// indexEntry is one block and the workers that hold it.
type indexEntry struct {
	before, behind int32
	// holders are the slots of one or two workers: mostly those that computed a prompt and
	// that go on with it. Each has the entry in a list of its own. Of more workers, the first
	// is several less their number in Index.sharing, and none has it in its list.
	holders [2]int32
	links   [2]link
}

const (
	nobody  = -1
	several = -2
)

// place is one of the two holders of an entry: the entry's number, doubled, and which.
type place int32

const noPlace place = -1

// link joins a place to its neighbours in the list of its worker.
type link struct{ before, behind place }

// shared is an entry that several workers hold.
type shared struct {
	entry   int32
	holders bitset // by slot; none: this is unused
}

// NewIndex makes an index of at most maxBlocks different blocks, at least one.
// Over the bound the block that was not used for longest is forgotten, for all
// workers at once.
func NewIndex(maxBlocks int) *Index {
	maxBlocks = max(min(maxBlocks, math.MaxInt32/2-2), 1) // a place is an int32
	return &Index{
		maxBlocks: maxBlocks,
		workers:   make(map[string]*indexWorker),
		byHash:    newHashTable(maxBlocks + 2),
		entries:   make([]indexEntry, 1),
	}
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
	x.names[w.slot], x.bySlot[w.slot] = "", nil
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
		n := x.byHash.find(hash)
		if n == absent {
			break
		}
		e := &x.entries[n]
		if depth == 0 {
			x.addHolders(e)
		}
		// Who is not here has its answer; the others go on.
		alive := false
		for i := range x.candidates {
			here := x.holders(e, i)
			x.answer(dst, i, x.candidates[i]&^here, depth)
			x.candidates[i] &= here
			alive = alive || x.candidates[i] != 0
		}
		if !alive {
			break
		}
		x.path = append(x.path, n)
	}
	for i, word := range x.candidates {
		x.answer(dst, i, word, len(x.path))
	}
	// The first block last, so that a chain is forgotten from its end.
	for _, n := range slices.Backward(x.path) {
		x.touch(n)
	}
	return dst
}

// addHolders puts the workers that hold a block among the candidates.
func (x *Index) addHolders(e *indexEntry) {
	if set := x.shared(e); set != nil {
		x.candidates = append(x.candidates, *set...)
		return
	}
	for _, slot := range e.holders {
		if slot >= 0 {
			x.candidates.set(int(slot))
		}
	}
}

// shared are the holders of a block that are more than two, else nil.
func (x *Index) shared(e *indexEntry) *bitset {
	if e.holders[0] > several {
		return nil
	}
	return &x.sharing[several-e.holders[0]].holders
}

// holders is one word of the set of workers that hold a block.
func (x *Index) holders(e *indexEntry, i int) uint64 {
	if set := x.shared(e); set != nil {
		if i < len(*set) {
			return (*set)[i]
		}
		return 0
	}
	var word uint64
	for _, slot := range e.holders {
		if slot >= 0 && int(slot)/64 == i {
			word |= 1 << (slot % 64)
		}
	}
	return word
}

func (x *Index) answer(dst map[string]int, wordIndex int, word uint64, depth int) {
	for ; word != 0; word &= word - 1 {
		dst[x.names[64*wordIndex+bits.TrailingZeros64(word)]] = depth
	}
}

// Len is the number of different blocks that the index holds.
func (x *Index) Len() int { return x.byHash.len }

// InSync says whether the index knows what the worker holds.
func (x *Index) InSync(worker string) bool {
	w, ok := x.workers[worker]
	return ok && w.synced
}

// Blocks are the blocks that the index holds for a worker, in no order. It takes time in
// proportion to them.
func (x *Index) Blocks(worker string) []Hash {
	w, ok := x.workers[worker]
	if !ok {
		return nil
	}
	var hashes []Hash
	for at := w.first; at != noPlace; at = x.link(at).behind {
		hashes = append(hashes, x.byHash.hash(int32(at/2)))
	}
	for _, s := range x.sharing {
		if s.holders.has(w.slot) {
			hashes = append(hashes, x.byHash.hash(s.entry))
		}
	}
	return hashes
}

func (x *Index) worker(name string) *indexWorker {
	if w, ok := x.workers[name]; ok {
		return w
	}
	w := &indexWorker{first: noPlace}
	if n := len(x.freeSlots); n > 0 {
		w.slot, x.freeSlots = x.freeSlots[n-1], x.freeSlots[:n-1]
		x.names[w.slot], x.bySlot[w.slot] = name, w
	} else {
		w.slot = len(x.names)
		x.names, x.bySlot = append(x.names, name), append(x.bySlot, w)
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
		if n := x.byHash.find(hash); n != absent && x.holds(w, n) {
			x.clear(w, n)
		}
	}
	// Parents come first and become the more recently used.
	for _, hash := range slices.Backward(stored) {
		n := x.byHash.find(hash)
		if n == absent {
			n = x.take(hash)
		}
		if !x.holds(w, n) {
			x.hold(w, n)
		}
		x.touch(n)
		if x.byHash.len > x.maxBlocks {
			x.forget(x.entries[recent].before)
		}
	}
}

// take gives a block an entry without a holder, in a ring of its own.
func (x *Index) take(hash Hash) int32 {
	n := x.free
	if n == recent {
		n = int32(len(x.entries))
		x.entries = append(x.entries, indexEntry{})
	} else {
		x.free = x.entries[n].behind
	}
	x.entries[n] = indexEntry{before: n, behind: n, holders: [2]int32{nobody, nobody}}
	x.byHash.add(n, hash)
	return n
}

// holds says whether a worker holds a block.
func (x *Index) holds(w *indexWorker, n int32) bool {
	e := &x.entries[n]
	if set := x.shared(e); set != nil {
		return set.has(w.slot)
	}
	return e.holders[0] == int32(w.slot) || e.holders[1] == int32(w.slot)
}

// hold adds a worker to those that hold a block.
func (x *Index) hold(w *indexWorker, n int32) {
	e := &x.entries[n]
	set := x.shared(e)
	for i, slot := range e.holders {
		if set == nil && slot == nobody {
			e.holders[i] = int32(w.slot)
			x.enlist(w, place(2*n)+place(i))
			return
		}
	}
	if set == nil {
		number := int32(len(x.sharing))
		if last := len(x.unused) - 1; last >= 0 {
			number, x.unused = x.unused[last], x.unused[:last]
		} else {
			x.sharing = append(x.sharing, shared{})
		}
		x.sharing[number].entry = n
		set = &x.sharing[number].holders
		for i, slot := range e.holders {
			set.set(int(slot))
			x.delist(x.bySlot[slot], place(2*n)+place(i))
		}
		e.holders[0] = several - number
	}
	set.set(w.slot)
}

// link is that of a place.
func (x *Index) link(at place) *link { return &x.entries[at/2].links[at%2] }

// enlist puts a place into the list of its worker.
func (x *Index) enlist(w *indexWorker, at place) {
	*x.link(at) = link{before: noPlace, behind: w.first}
	if w.first != noPlace {
		x.link(w.first).before = at
	}
	w.first = at
}

// delist takes it out.
func (x *Index) delist(w *indexWorker, at place) {
	l := x.link(at)
	if l.before != noPlace {
		x.link(l.before).behind = l.behind
	} else {
		w.first = l.behind
	}
	if l.behind != noPlace {
		x.link(l.behind).before = l.before
	}
}

// drop forgets what a worker holds.
func (x *Index) drop(w *indexWorker) {
	w.synced = false
	for w.first != noPlace {
		x.clear(w, int32(w.first/2))
	}
	for i := range x.sharing {
		if s := &x.sharing[i]; s.holders.has(w.slot) {
			x.clear(w, s.entry)
		}
	}
}

// clear takes one block from one worker.
func (x *Index) clear(w *indexWorker, n int32) {
	e := &x.entries[n]
	if set := x.shared(e); set != nil {
		if set.unset(w.slot); set.empty() {
			x.forget(n)
		}
		return
	}
	for i, slot := range e.holders {
		if slot == int32(w.slot) {
			x.delist(w, place(2*n)+place(i))
			e.holders[i] = nobody
		}
	}
	if e.holders == [2]int32{nobody, nobody} {
		x.forget(n)
	}
}

// forget takes one block from all workers.
func (x *Index) forget(n int32) {
	e := &x.entries[n]
	if set := x.shared(e); set != nil {
		*set = (*set)[:0]
		x.unused = append(x.unused, several-e.holders[0])
	} else {
		for i, slot := range e.holders {
			if slot >= 0 {
				x.delist(x.bySlot[slot], place(2*n)+place(i))
			}
		}
	}
	x.entries[e.before].behind, x.entries[e.behind].before = e.behind, e.before
	x.byHash.delete(n)
	*e = indexEntry{behind: x.free}
	x.free = n
}

// touch makes an entry the most recently used.
func (x *Index) touch(n int32) {
	e := &x.entries[n]
	x.entries[e.before].behind, x.entries[e.behind].before = e.behind, e.before
	first := x.entries[recent].behind
	e.before, e.behind = recent, first
	x.entries[recent].behind, x.entries[first].before = n, n
}

// bitset is a set of small numbers.
type bitset []uint64

func (s *bitset) set(i int) {
	for len(*s) <= i/64 {
		*s = append(*s, 0)
	}
	(*s)[i/64] |= 1 << (i % 64)
}

func (s bitset) has(i int) bool { return i/64 < len(s) && s[i/64]&(1<<(i%64)) != 0 }

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
