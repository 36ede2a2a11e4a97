package kvcache

import "slices"

// recent is the entry that holds no block and begins the ring.
const recent = 0

const entriesPiece = 1 << 12

// maxSharingWords bounds the sets of the blocks that several workers hold: 32 MiB, enough for a
// million blocks among 256 workers. Beyond it, third and further holders of a block are forgotten.
const maxSharingWords = 4 << 20

// indexEntry is one block and the workers that hold it.
type indexEntry struct {
	before, behind int32
	// holders are the slots of one or two generations, mostly of the worker that computed a
	// prompt and the one that continues it. Each has the entry in its list. If more workers
	// hold the block, holders[0] is several minus the index of their set in Index.sharing, and
	// the entry is in no list.
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

// link joins a place to its neighbours in the list of its generation.
type link struct{ before, behind place }

// shared is an entry that several workers hold.
type shared struct {
	entry   int32  // in the unused list: the next one; nobody at its end
	holders bitset // by slot; empty if this is unused
}

// store adds blocks to what a worker holds.
func (x *Index) store(g *generation, stored []Hash) {
	// Parents come first and become the more recently used.
	for _, hash := range slices.Backward(stored) {
		n := x.byHash.find(hash)
		if n == absent {
			n = x.take(hash)
		}
		if !x.holds(g, n) {
			x.hold(g, n)
		}
		x.touch(n)
		if x.byHash.len > x.maxBlocks {
			oldest := x.entry(recent).before
			if x.counts(x.entry(oldest)) {
				x.forgotten++
			}
			x.forget(oldest)
		}
	}
}

// counts says whether a generation that is not retired has a block.
func (x *Index) counts(e *indexEntry) bool {
	if len(x.retired)+len(x.unlisted)+len(x.swept) == 0 {
		return true
	}
	if set := x.shared(e); set != nil {
		return slices.ContainsFunc(x.bySlot, func(g *generation) bool { return g != nil && !g.retired && set.has(g.slot) })
	}
	return slices.ContainsFunc(e.holders[:], func(slot int32) bool { return slot >= 0 && !x.bySlot[slot].retired })
}

func (x *Index) entry(n int32) *indexEntry { return &x.entries[n/entriesPiece][n%entriesPiece] }

// take gives a block an entry without a holder, in a ring of its own.
func (x *Index) take(hash Hash) int32 {
	n := x.free
	if n == recent {
		if n = x.taken; n%entriesPiece == 0 {
			x.entries = append(x.entries, new([entriesPiece]indexEntry))
		}
		x.taken++
	} else {
		x.free = x.entry(n).behind
	}
	*x.entry(n) = indexEntry{before: n, behind: n, holders: [2]int32{nobody, nobody}}
	x.byHash.add(n, hash)
	return n
}

// holds says whether a worker holds a block.
func (x *Index) holds(g *generation, n int32) bool {
	e := x.entry(n)
	if set := x.shared(e); set != nil {
		return set.has(g.slot)
	}
	return e.holders[0] == int32(g.slot) || e.holders[1] == int32(g.slot)
}

// hold adds a worker to those that hold a block.
func (x *Index) hold(g *generation, n int32) {
	e := x.entry(n)
	set := x.shared(e)
	for i, slot := range e.holders {
		if set == nil && slot == nobody {
			e.holders[i] = int32(g.slot)
			x.enlist(g, place(2*n)+place(i))
			return
		}
	}
	more := max(g.slot, int(e.holders[0]), int(e.holders[1]))/64 + 1
	if set != nil {
		more = max(g.slot/64+1-len(*set), 0)
	}
	if x.sharingWords+more > maxSharingWords {
		x.forgotten++
		return
	}
	x.sharingWords += more
	if set == nil {
		number := x.share()
		s := x.sharer(number)
		s.entry, set = n, &s.holders
		for i, slot := range e.holders {
			set.set(int(slot))
			x.delist(x.bySlot[slot], place(2*n)+place(i))
		}
		e.holders[0] = several - number
	}
	set.set(g.slot)
}

// sharer is an element of sharing.
func (x *Index) sharer(n int32) *shared { return &x.sharing[n/entriesPiece][n%entriesPiece] }

// share takes an unused element of sharing.
func (x *Index) share() int32 {
	n := x.sharingUnused
	if n != nobody {
		x.sharingUnused = x.sharer(n).entry
		return n
	}
	if n = x.sharingTaken; n%entriesPiece == 0 {
		x.sharing = append(x.sharing, new([entriesPiece]shared))
	}
	x.sharingTaken++
	return n
}

// link is that of a place.
func (x *Index) link(at place) *link { return &x.entry(int32(at / 2)).links[at%2] }

// enlist puts a place into the list of its worker.
func (x *Index) enlist(g *generation, at place) {
	*x.link(at) = link{before: noPlace, behind: g.first}
	if g.first != noPlace {
		x.link(g.first).before = at
	}
	g.first = at
}

// delist takes it out.
func (x *Index) delist(g *generation, at place) {
	l := x.link(at)
	if l.before != noPlace {
		x.link(l.before).behind = l.behind
	} else {
		g.first = l.behind
	}
	if l.behind != noPlace {
		x.link(l.behind).before = l.before
	}
}

// clear takes one block from one worker.
func (x *Index) clear(g *generation, n int32) {
	e := x.entry(n)
	if set := x.shared(e); set != nil {
		if set.unset(g.slot); set.empty() {
			x.forget(n)
		}
		return
	}
	for i, slot := range e.holders {
		if slot == int32(g.slot) {
			x.delist(g, place(2*n)+place(i))
			e.holders[i] = nobody
		}
	}
	if e.holders == [2]int32{nobody, nobody} {
		x.forget(n)
	}
}

// forget takes one block from all workers.
func (x *Index) forget(n int32) {
	e := x.entry(n)
	if set := x.shared(e); set != nil {
		x.sharingWords -= len(*set)
		*set = (*set)[:0]
		number := several - e.holders[0]
		x.sharer(number).entry, x.sharingUnused = x.sharingUnused, number
	} else {
		for i, slot := range e.holders {
			if slot >= 0 {
				x.delist(x.bySlot[slot], place(2*n)+place(i))
			}
		}
	}
	x.entry(e.before).behind, x.entry(e.behind).before = e.behind, e.before
	x.byHash.delete(n)
	*e = indexEntry{behind: x.free}
	x.free = n
}

// touch makes an entry the most recently used.
func (x *Index) touch(n int32) {
	e := x.entry(n)
	x.entry(e.before).behind, x.entry(e.behind).before = e.behind, e.before
	first := x.entry(recent).behind
	e.before, e.behind = recent, first
	x.entry(recent).behind, x.entry(first).before = n, n
}
