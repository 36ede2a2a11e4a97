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
// over a bound. For one of whose events some are missing it is what it held
// before, changed by those that came, until a snapshot is whole: how far that is
// to be believed is for the caller to say.
//
// What a worker holds is kept in generations: the current one, and the one of a
// snapshot that comes in parts. The old one is cleared little by little, so that
// no call takes long.
//
// An Index is not safe for concurrent use; Match counts as a use.
type Index struct {
	maxBlocks   int
	workers     map[string]*indexWorker
	names       []string      // by slot: of the worker whose current generation it is, or ""
	bySlot      []*generation // nil is a free slot
	freeSlots   []int
	retired     []*generation // to be cleared, oldest first
	sweepBlocks int
	forgotten   uint64

	// Blocks are numbered, and known by their numbers: a million of them hold no pointer for
	// the garbage collector to follow.
	byHash hashTable
	// entries are in pieces, so that none of them is ever moved. entry(recent)'s ring: behind is
	// the most recently used.
	entries []*[entriesPiece]indexEntry
	taken   int32 // of them
	free    int32 // the first of those that hold no block, by behind; recent: none is
	// sharing are the entries that several workers hold, in pieces too.
	sharing       []*[entriesPiece]shared
	sharingTaken  int32 // of them
	sharingUnused int32 // the first of those that are unused, by entry; nobody: none is
	// sharingWords is the length of the sets in sharing, in all.
	sharingWords int

	candidates bitset  // scratch of MatchInto
	path       []int32 // scratch of MatchInto
	fetched    int32   // means nothing: fetch has to do something with what it reads
}

// The bounds of what is kept for a worker between a gap and its snapshot.
const (
	maxPendingEvents = 256
	maxPendingHashes = 1 << 16
)

// sweepBlocks is how many blocks of retired generations an event clears, and sweepOnMatch a match.
const (
	sweepBlocks  = 1024
	sweepOnMatch = 32
)

type indexWorker struct {
	name            string
	synced          bool
	epoch, sequence uint64      // of the last event or snapshot in current
	current         *generation // nil: nothing is known
	pending         []indexEvent
	pendingHashes   int

	// next is a snapshot of which so many hashes have come in parts, with its epoch and sequence;
	// nil: there is none.
	next                    *generation
	nextCame                int
	nextEpoch, nextSequence uint64
}

// generation is one set of the blocks that a worker holds.
type generation struct {
	slot  int
	first place // of its list; noPlace: it is empty
	// retired: it counts no more. swept is how many entries of Index.sharing were cleared of it
	// since.
	retired bool
	swept   int32
}

type indexEvent struct {
	epoch, sequence uint64
	stored, removed []Hash
}

// NewIndex makes an index of at most maxBlocks different blocks, at least one.
// Over the bound the block that was not used for longest is forgotten, for all
// workers at once.
func NewIndex(maxBlocks int) *Index {
	maxBlocks = max(min(maxBlocks, math.MaxInt32/2-2), 1) // a place is an int32
	return &Index{
		maxBlocks: maxBlocks, sweepBlocks: sweepBlocks,
		workers: make(map[string]*indexWorker),
		byHash:  newHashTable(maxBlocks + 2),
		entries: []*[entriesPiece]indexEntry{new([entriesPiece]indexEntry)},
		taken:   1, sharingUnused: nobody,
	}
}

// Apply takes a worker's event: what was stored and removed since the one
// before. Events of one epoch are numbered without gaps; one that came before is
// ignored. False means that the index does not know for certain what the worker
// holds, since it is new, has a new epoch, or an event was lost, and the caller
// asks it for a Snapshot. Until then events are kept as well as applied, as many
// as the bound allows. With a new epoch nothing of the old one is left. The
// slices are not kept or changed.
func (x *Index) Apply(worker string, epoch, sequence uint64, stored, removed []Hash) (inSync bool) {
	x.sweep(x.sweepBlocks)
	w := x.worker(worker)
	if w.current != nil && w.epoch != epoch {
		x.unknow(w)
	}
	if w.current != nil {
		if sequence <= w.sequence && w.synced {
			return true
		}
		w.synced = w.synced && sequence == w.sequence+1
		if sequence > w.sequence {
			x.apply(w, sequence, stored, removed)
		}
		if w.synced {
			return true
		}
	}
	w.keep(indexEvent{epoch, sequence, slices.Clone(stored), slices.Clone(removed)})
	return false
}

// Snapshot takes everything that a worker held after the event with that number.
// It takes the place of what the index held for the worker, and events that came
// meanwhile with higher numbers are applied after it. False means that one of
// those is missing: the caller asks for another snapshot. That one contains what
// lies beyond the gap; an event that no worker ever sent is gone with it. A
// snapshot older than what the index knows for certain is ignored. The slice is
// not kept or changed.
func (x *Index) Snapshot(worker string, epoch, sequence uint64, hashes []Hash) (inSync bool) {
	return x.Rest(worker, epoch, sequence, 0, hashes)
}

// Part takes some of a Snapshot, of which so many hashes came in parts before.
// More follows: Rest is the last.
func (x *Index) Part(worker string, epoch, sequence uint64, came int, hashes []Hash) {
	x.sweep(x.sweepBlocks)
	w := x.worker(worker)
	if came == 0 {
		x.retire(&w.next)
		w.next, w.nextEpoch, w.nextSequence, w.nextCame = x.generation(), epoch, sequence, 0
	}
	if w.next == nil || w.nextEpoch != epoch || w.nextSequence != sequence || w.nextCame != came {
		x.retire(&w.next) // parts of two, or one is missing
		return
	}
	w.nextCame += len(hashes)
	x.store(w.next, hashes)
}

// Rest is Snapshot with its last part. False means as well that another part is
// missing.
func (x *Index) Rest(worker string, epoch, sequence uint64, came int, hashes []Hash) (inSync bool) {
	x.sweep(x.sweepBlocks)
	w := x.worker(worker)
	if w.synced && w.epoch == epoch && sequence <= w.sequence {
		x.retire(&w.next)
		return true
	}
	if x.Part(worker, epoch, sequence, came, hashes); w.next == nil {
		return false
	}
	x.unknow(w)
	w.current, w.next = w.next, nil
	x.names[w.current.slot] = w.name
	w.synced, w.epoch, w.sequence = true, epoch, sequence
	pending := w.pending
	w.pending, w.pendingHashes = nil, 0
	// Events of other epochs are of no use to what is known from here on.
	pending = slices.DeleteFunc(pending, func(e indexEvent) bool { return e.epoch != epoch })
	slices.SortStableFunc(pending, func(a, b indexEvent) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, e := range pending {
		if e.sequence > w.sequence {
			w.synced = w.synced && e.sequence == w.sequence+1
			x.apply(w, e.sequence, e.stored, e.removed)
		}
	}
	return w.synced
}

// Forget drops a worker that is gone.
func (x *Index) Forget(worker string) {
	if w, ok := x.workers[worker]; ok {
		x.unknow(w)
		x.retire(&w.next)
		delete(x.workers, worker)
	}
	x.sweep(x.sweepBlocks)
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
	x.sweep(min(x.sweepBlocks, sweepOnMatch))
	x.candidates, x.path = x.candidates[:0], x.path[:0]
	for depth, hash := range hashes {
		n := x.byHash.find(hash)
		if n == absent {
			break
		}
		e := x.entry(n)
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
	return &x.sharer(several - e.holders[0]).holders
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
		if name := x.names[64*wordIndex+bits.TrailingZeros64(word)]; name != "" {
			dst[name] = depth
		}
	}
}

// Len is the number of different blocks that the index holds.
func (x *Index) Len() int { return x.byHash.len }

// Forgotten is how many blocks were forgotten so far because they were too many, for all
// workers at once or, where very many hold them, for one.
func (x *Index) Forgotten() uint64 { return x.forgotten }

// Holds says whether the index holds a block for a worker.
func (x *Index) Holds(worker string, hash Hash) bool {
	w, ok := x.workers[worker]
	if !ok || w.current == nil {
		return false
	}
	n := x.byHash.find(hash)
	return n != absent && x.holds(w.current, n)
}

// InSync says whether the index knows for certain what the worker holds.
func (x *Index) InSync(worker string) bool {
	w, ok := x.workers[worker]
	return ok && w.synced
}

// Lacks says whether the index believes that it knows for certain what this incarnation of a worker
// holds, and has not had its events up to that number.
func (x *Index) Lacks(worker string, epoch, sequence uint64) bool {
	w, ok := x.workers[worker]
	return ok && w.synced && w.epoch == epoch && w.sequence < sequence
}

// Blocks are the blocks that the index holds for a worker, in no order. It takes time in
// proportion to them.
func (x *Index) Blocks(worker string) []Hash {
	w, ok := x.workers[worker]
	if !ok || w.current == nil {
		return nil
	}
	var hashes []Hash
	for at := w.current.first; at != noPlace; at = x.link(at).behind {
		hashes = append(hashes, x.byHash.hash(int32(at/2)))
	}
	for i := range x.sharingTaken {
		if s := x.sharer(i); s.holders.has(w.current.slot) {
			hashes = append(hashes, x.byHash.hash(s.entry))
		}
	}
	return hashes
}

func (x *Index) worker(name string) *indexWorker {
	w, ok := x.workers[name]
	if !ok {
		w = &indexWorker{name: name}
		x.workers[name] = w
	}
	return w
}

// generation is a new one of a worker, which is not its current one yet.
func (x *Index) generation() *generation {
	g := &generation{slot: len(x.names), first: noPlace}
	if n := len(x.freeSlots); n > 0 {
		g.slot, x.freeSlots = x.freeSlots[n-1], x.freeSlots[:n-1]
		x.bySlot[g.slot] = g
	} else {
		x.names, x.bySlot = append(x.names, ""), append(x.bySlot, g)
	}
	return g
}

// unknow lets nothing be known of what a worker holds.
func (x *Index) unknow(w *indexWorker) {
	w.synced = false
	x.retire(&w.current)
}

// retire lets a generation count for nothing any more. What it holds is cleared by and by.
func (x *Index) retire(of **generation) {
	if g := *of; g != nil {
		x.names[g.slot], g.retired = "", true
		x.retired = append(x.retired, g)
		*of = nil
	}
}

// sweep clears so many blocks of retired generations.
func (x *Index) sweep(blocks int) {
	for ; blocks > 0 && len(x.retired) > 0; blocks-- {
		switch g := x.retired[0]; {
		case g.first != noPlace:
			x.clear(g, int32(g.first/2))
		case g.swept < x.sharingTaken:
			if s := x.sharer(g.swept); s.holders.has(g.slot) {
				x.clear(g, s.entry)
			}
			g.swept++
		default:
			x.bySlot[g.slot] = nil
			x.freeSlots = append(x.freeSlots, g.slot)
			x.retired = slices.Delete(x.retired, 0, 1)
		}
	}
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
	x.fetch(removed, stored)
	for _, hash := range removed {
		if n := x.byHash.find(hash); n != absent && x.holds(w.current, n) {
			x.clear(w.current, n)
		}
	}
	x.store(w.current, stored)
}

// fetch reads what is about to be changed for some blocks. A processor waits for many lines of
// memory at a time where none of them has to be there for the next.
func (x *Index) fetch(lists ...[]Hash) {
	for _, hashes := range lists {
		for _, hash := range hashes {
			x.byHash.fetch(hash)
		}
	}
	for _, hashes := range lists {
		for _, hash := range hashes {
			x.byHash.fetchFirst(hash)
		}
	}
	for _, hashes := range lists {
		for _, hash := range hashes {
			if n := x.byHash.find(hash); n != absent {
				x.fetched += x.entry(n).before
			}
		}
	}
}
