package kvcache

import (
	"cmp"
	"math"
	"slices"
)

// Index is a router's view of the prefix caches of many workers: which worker holds which
// block. The caller feeds it each worker's numbered events and, if some are missing, a
// snapshot. For a worker in sync, the index holds what the worker held at the last event,
// except blocks beyond a bound. If events are missing, it holds its last knowledge with the
// events that came, until a snapshot is complete; the caller decides how far to trust that.
//
// The blocks of a worker are a generation. A snapshot that comes in parts makes a new one.
// The old one is cleared little by little, so that no call takes long.
//
// An Index is not safe for concurrent use; MatchInto counts as a use.
type Index struct {
	maxBlocks   int
	workers     map[string]*indexWorker
	names       []string      // by slot: the worker whose current generation has it, or ""
	bySlot      []*generation // nil is a free slot
	freeSlots   []int
	retired     []*generation // their lists are still to be cleared, oldest first
	unlisted    []*generation // retired too, without a list: to be cleared from sharing
	swept       []*generation // of the first sweptSets of sharing they were
	sweptSlots  bitset        // of swept
	sweptSets   int32
	sweepBlocks int
	forgotten   uint64

	// Blocks refer to each other by number: a million of them hold no pointer for the garbage
	// collector to follow.
	byHash hashTable
	// entries come in pieces, so that none ever moves. They form a ring around entry(recent),
	// whose behind is the most recently used block.
	entries []*[entriesPiece]indexEntry
	taken   int32 // entries in use or in the free list
	free    int32 // head of the free list, linked by behind; recent if it is empty
	// sharing holds the sets of workers of blocks that several workers hold, in pieces too.
	sharing       []*[entriesPiece]shared
	sharingTaken  int32 // sets in use or in the unused list
	sharingUnused int32 // head of the unused list, linked by entry; nobody if it is empty
	sharingWords  int   // total length of the sets

	candidates   bitset  // scratch of MatchInto
	path         []int32 // scratch of MatchInto
	prefetchSink int32   // see package kvcache
}

// Bounds of the events that are kept for a worker between a gap and its snapshot.
const (
	maxPendingEvents = 256
	maxPendingHashes = 1 << 16
)

// An event clears up to sweepBlocks blocks of retired generations, and looks at as many sets; a match up
// to sweepOnMatch.
const (
	sweepBlocks  = 1024
	sweepOnMatch = 32
)

type indexWorker struct {
	name            string
	synced          bool
	epoch, sequence uint64      // of the last event or snapshot in current
	current         *generation // nil if nothing is known
	pending         []indexEvent
	pendingHashes   int

	// next is a snapshot that comes in parts, nil without one; nextCame hashes of it are there.
	next                    *generation
	nextCame                int
	nextEpoch, nextSequence uint64
}

type indexEvent struct {
	epoch, sequence uint64
	stored, removed []Hash
}

// NewIndex makes an index of at most maxBlocks different blocks, at least one. Beyond that it
// forgets the least recently used block, for all workers at once.
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

// Apply takes a worker's event: the blocks stored and removed since the event before. Events
// of one epoch have numbers without gaps; old ones are ignored. It returns false if the index
// does not know for certain what the worker holds, since the worker or its epoch is new or an
// event was lost: the caller then asks the worker for a Snapshot. Until that comes, the index
// applies events and also keeps as many as the bound allows. A new epoch drops all that is
// known of the old one. Apply does not keep or change the slices.
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

// Snapshot takes all blocks that a worker held after the event with that number. It replaces
// what the index held for the worker. Later events that came meanwhile are applied on top of
// it. It returns false if one of those is missing: the caller then asks for another snapshot,
// which covers the gap. A snapshot that is older than certain knowledge is ignored. Snapshot
// does not keep or change the slice.
func (x *Index) Snapshot(worker string, epoch, sequence uint64, hashes []Hash) (inSync bool) {
	return x.FinishSnapshot(worker, epoch, sequence, 0, hashes)
}

// Part takes a part of a Snapshot, of which came hashes were in earlier parts. FinishSnapshot takes the
// last part.
func (x *Index) Part(worker string, epoch, sequence uint64, came int, hashes []Hash) {
	x.sweep(x.sweepBlocks)
	w := x.worker(worker)
	if w.knows(epoch, sequence) {
		x.retire(&w.next)
		return
	}
	if came == 0 {
		x.retire(&w.next)
		w.next, w.nextEpoch, w.nextSequence, w.nextCame = x.generation(), epoch, sequence, 0
	}
	if w.next == nil || w.nextEpoch != epoch || w.nextSequence != sequence || w.nextCame != came {
		x.retire(&w.next) // a part is missing, or belongs to another snapshot
		return
	}
	w.nextCame += len(hashes)
	x.store(w.next, hashes)
}

// FinishSnapshot is Snapshot for the last part. It also returns false if another part is missing.
func (x *Index) FinishSnapshot(worker string, epoch, sequence uint64, came int, hashes []Hash) (inSync bool) {
	x.sweep(x.sweepBlocks)
	w := x.worker(worker)
	if w.knows(epoch, sequence) {
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
	// Events of other epochs are of no use any more.
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

// Len is the number of different blocks that the index holds.
func (x *Index) Len() int { return x.byHash.len }

// Forgotten counts blocks that were forgotten because they were too many: for all workers at
// once or, if very many workers hold a block, for one of them.
func (x *Index) Forgotten() uint64 { return x.forgotten }

// Holds reports whether the index holds a block for a worker.
func (x *Index) Holds(worker string, hash Hash) bool {
	w, ok := x.workers[worker]
	if !ok || w.current == nil {
		return false
	}
	n := x.byHash.find(hash)
	return n != absent && x.holds(w.current, n)
}

// InSync reports whether the index knows for certain what the worker holds.
func (x *Index) InSync(worker string) bool {
	w, ok := x.workers[worker]
	return ok && w.synced
}

// Lacks reports whether the index counts this epoch of a worker as in sync but has not seen its
// events up to that number.
func (x *Index) Lacks(worker string, epoch, sequence uint64) bool {
	w, ok := x.workers[worker]
	return ok && w.synced && w.epoch == epoch && w.sequence < sequence
}

// Blocks returns the blocks that the index holds for a worker, in no order. It takes time in
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

// knows says whether a snapshot of that event says nothing new.
func (w *indexWorker) knows(epoch, sequence uint64) bool {
	return w.synced && w.epoch == epoch && sequence <= w.sequence
}

// keep keeps an event until a snapshot comes. Beyond the bound it drops the oldest; the gap
// then needs one more snapshot.
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

// fetch reads the memory of blocks that are about to change. These reads do not depend on each
// other, so the processor waits for many of them at the same time.
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
				x.prefetchSink += x.entry(n).before
			}
		}
	}
}
