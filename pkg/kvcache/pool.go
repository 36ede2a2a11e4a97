package kvcache

import (
	"slices"
	"unique"
)

// Pool hands out a fixed number of blocks and remembers what full ones hold, so
// that sequences with the same prefix share them.
//
// Every block is in one of these states:
//
//   - free: nobody has it, its content means nothing;
//   - held: it has references. It may be published as well, and then gets more;
//   - cached: published, without references; it is found again, or evicted;
//   - quarantined: its sequence is over, but something could still write it, or what it
//     holds must not be read by anybody.
//
// A block that is free or cached can be had by Allocate; nothing else can. The
// pool never looks at KV: its owner says when a block is complete.
//
// A Pool is not safe for concurrent use.
type Pool struct {
	modelDigest, arithmeticClass string
	blockTokens                  int
	next                         func(Hash, []int32) Hash

	blocks []block
	tokens []int32 // the tokens of published blocks, blockTokens each
	free   []BlockID
	idle   evictionHeap // the cached blocks

	published hashTable
	salts     map[BlockID]string // of published blocks without a parent, where it is not empty

	// unsaved are those of idle that NextToSave did not give. It is kept from the first
	// NextToSave on: a pool whose blocks nobody takes has no use for it.
	unsaved evictionHeap
	offers  bool
	fresh   []published // since then, the oldest first; some are gone, or were given

	invalid []BlockID // quarantined since the last Invalidated

	tick       uint64 // logical time of use
	generation uint64 // last one given to a published block
	changes    changes

	stats   Stats     // but for what Stats itself counts
	matched []BlockID // scratch of Acquire
	root    Chain     // the last one that was asked for: looking up the same salt again does not hash
}

// block fills one cache line.
type block struct {
	refs        int32
	pins        int32 // of the references, those of candidates
	reserved    bool
	quarantined bool
	invalid     bool // what it holds is wrong: it is overwritten before anybody gets it

	// What follows is set while the block is published.
	offered, saved        bool // NextToSave gave it; somebody else has it, too
	again                 bool // Unsaved let it be offered once more
	parent                BlockID
	child, before, behind BlockID // first child; neighbours among the parent's children
	generation            uint64  // 0: not published
	used                  uint64

	origin unique.Handle[string] // who computed what it holds, by SetOrigin; zero: nobody said
}

// none is no block.
const none BlockID = -1

// NewPool makes a pool whose blocks, 0 to blocks-1, hold blockTokens tokens
// each, all free. Model digest and arithmetic class go into the hashes.
// Arguments below 1 are taken as 1.
func NewPool(blocks, blockTokens int, modelDigest, arithmeticClass string) *Pool {
	blocks, blockTokens = max(blocks, 1), max(blockTokens, 1)
	p := &Pool{
		modelDigest:     modelDigest,
		arithmeticClass: arithmeticClass,
		blockTokens:     blockTokens,
		next:            Hash.Next,
		blocks:          make([]block, blocks),
		tokens:          make([]int32, blocks*blockTokens),
		free:            make([]BlockID, blocks),
		published:       newHashTable(blocks),
		salts:           make(map[BlockID]string),
		idle:            newEvictionHeap(blocks),
	}
	for i := range p.blocks {
		p.blocks[i] = unpublished
		p.free[i] = BlockID(blocks - 1 - i) // so that low ids go out first
	}
	return p
}

var unpublished = block{parent: none, child: none, before: none, behind: none}

// BlockTokens is the number of tokens in a block.
func (p *Pool) BlockTokens() int { return p.blockTokens }

// Total is the number of blocks.
func (p *Pool) Total() int { return len(p.blocks) }

// Available is the number of blocks that Allocate could give: free and cached.
func (p *Pool) Available() int { return len(p.free) + p.idle.len() }

// Allocate takes n blocks with one reference each, evicting cached ones if it
// has to, and appends them to dst in ascending order. It takes all or nothing:
// false leaves the pool as it was.
func (p *Pool) Allocate(dst []BlockID, n int) ([]BlockID, bool) {
	if n < 0 || n > p.Available() {
		return dst, false
	}
	if missing := n - len(p.free); missing > 1 {
		p.fetch(missing)
	}
	for len(p.free) < n {
		p.evict()
	}
	first := len(p.free) - n
	taken := p.free[first:]
	for _, id := range taken {
		p.blocks[id].refs, p.blocks[id].origin = 1, unique.Handle[string]{}
	}
	p.stats.Held += n
	// Neighbours make longer runs for a transfer to move at once.
	slices.Sort(taken)
	dst = append(dst, taken...)
	p.free = p.free[:first]
	return dst, true
}

// Release drops a reference of each of the blocks, which must be held, the last
// of the slice first: of a chain, the end is then evicted before its beginning.
// A block without references becomes cached if it is published, else free, or
// quarantined if it is invalid.
func (p *Pool) Release(blocks []BlockID) {
	for _, id := range slices.Backward(blocks) {
		if !p.isHeld(id) {
			p.stats.Misuses++
			continue
		}
		b := &p.blocks[id]
		b.refs--
		if b.generation != 0 {
			p.touch(id)
		}
		if b.refs > 0 {
			continue
		}
		p.stats.Held--
		if b.reserved {
			b.reserved = false
			p.stats.Reserved--
		}
		if b.generation != 0 {
			p.cache(id)
		} else {
			p.vacate(id)
		}
	}
}

// Reserve marks held blocks as waiting for a transfer to write them. It changes
// nothing but the count in Stats.
func (p *Pool) Reserve(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) || p.blocks[id].reserved {
			p.stats.Misuses++
			continue
		}
		p.blocks[id].reserved = true
		p.stats.Reserved++
	}
}

// Arrived takes the mark of Reserve away: the blocks were written.
func (p *Pool) Arrived(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) || !p.blocks[id].reserved {
			p.stats.Misuses++
			continue
		}
		p.blocks[id].reserved = false
		p.stats.Reserved--
	}
}

// Quarantine takes blocks whose sequence is over while something could still
// write them. They must be held with one reference, which goes, and must not be
// published. Nobody gets them until Drained.
func (p *Pool) Quarantine(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) || p.blocks[id].refs != 1 || p.blocks[id].generation != 0 {
			p.stats.Misuses++
			continue
		}
		b := &p.blocks[id]
		if b.reserved {
			b.reserved = false
			p.stats.Reserved--
		}
		b.refs, b.quarantined = 0, true
		p.stats.Held--
		p.stats.Quarantined++
	}
}

// Drained frees quarantined blocks: nothing will write them any more, and what must not be
// read was overwritten.
func (p *Pool) Drained(blocks []BlockID) {
	for _, id := range blocks {
		if !p.valid(id) || !p.blocks[id].quarantined {
			p.stats.Misuses++
			continue
		}
		p.blocks[id].quarantined, p.blocks[id].invalid = false, false
		p.stats.Quarantined--
		p.free = append(p.free, id)
	}
}

func (p *Pool) valid(id BlockID) bool  { return id >= 0 && int(id) < len(p.blocks) }
func (p *Pool) isHeld(id BlockID) bool { return p.valid(id) && p.blocks[id].refs > 0 }

// Stats counts blocks and what became of look-ups.
// Free + Cached + Held + Quarantined = Total.
type Stats struct {
	// Free blocks hold nothing.
	Free int
	// Cached blocks are published and not referenced.
	Cached int
	// Held blocks are referenced.
	Held int
	// Reserved of the held ones wait for a transfer.
	Reserved int
	// Quarantined blocks could still be written by something, or must not be read.
	Quarantined int
	// Total blocks.
	Total int
	// Published blocks, cached or held, can be found by Acquire and MatchHashes.
	Published int
	// LookupTokens were looked up, as CountLookup says; HitTokens of them were found.
	LookupTokens, HitTokens uint64
	// Unoffered of the cached ones were not given by NextToSave yet.
	Unoffered int
	// Evictions of cached blocks; SavedEvictions are those of blocks that were
	// marked by Saved, UnofferedEvictions of those that NextToSave had not given.
	Evictions, SavedEvictions, UnofferedEvictions uint64
	// Misuses are calls that named a block in the wrong state, such as a second
	// Release. They are ignored and counted; anything but 0 is a bug of the owner.
	Misuses uint64
}

// Stats is the state of the pool, in constant time.
func (p *Pool) Stats() Stats {
	s := p.stats
	s.Free, s.Cached, s.Total, s.Published = len(p.free), p.idle.len(), len(p.blocks), p.published.len
	return s
}
