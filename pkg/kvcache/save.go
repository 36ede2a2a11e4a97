package kvcache

import "slices"

// SaveCandidate is a cached prefix whose last block is near its eviction.
type SaveCandidate struct {
	// Salt and Tokens name the prefix: whole blocks, from the first one on.
	Salt   string
	Tokens []int32
	// Blocks hold its KV, one reference each.
	Blocks []BlockID
}

// NextToSave gives the prefix that ends with the cached block that would be evicted
// first of those that were not given before, so that it can be saved elsewhere.
// It takes a reference to each block of the prefix, which Unpin gives back; until
// then they are held. No block of it is offered for itself any more, unless Unsaved
// says so, or it is evicted and published again. False: there is none.
func (p *Pool) NextToSave() (SaveCandidate, bool) {
	if !p.offers {
		p.offers = true
		p.unsaved = newEvictionHeap(len(p.blocks))
		for _, e := range p.idle.entries {
			if !p.blocks[e.id].offered {
				p.unsaved.push(e.id, e.rank)
			}
		}
	}
	if p.stats.Unoffered == 0 {
		return SaveCandidate{}, false
	}
	return p.offer(p.unsaved.first()), true
}

// published is a block as it was published.
type published struct {
	id         BlockID
	generation uint64
}

// NextHeldToSave is NextToSave for blocks that sequences hold: of those that were
// published since the first NextToSave and not given, the oldest one with all that
// follows it first. Where it is full, they are evicted as soon as they are let
// go. False: there is none.
func (p *Pool) NextHeldToSave() (SaveCandidate, bool) {
	for len(p.fresh) > 0 {
		oldest := p.fresh[0]
		p.fresh = p.fresh[1:]
		// What is cached meanwhile is NextToSave's.
		if b := &p.blocks[oldest.id]; b.generation != oldest.generation || b.offered || b.refs == 0 {
			continue
		}
		last := oldest.id
		for p.blocks[last].child != none {
			last = p.blocks[last].child
		}
		return p.offer(last), true
	}
	return SaveCandidate{}, false
}

// remember lets NextHeldToSave find a block that was just published.
func (p *Pool) remember(id BlockID) {
	if !p.offers {
		return
	}
	if len(p.fresh) >= 2*len(p.blocks) { // half are gone: no more can be published
		p.fresh = slices.DeleteFunc(p.fresh, func(f published) bool { return p.blocks[f.id].generation != f.generation })
	}
	p.fresh = append(p.fresh, published{id, p.blocks[id].generation})
}

// offer gives the prefix that ends with a published block.
func (p *Pool) offer(last BlockID) SaveCandidate {
	// What is before a published block is published.
	var n SaveCandidate
	for id := last; id != none; id = p.blocks[id].parent {
		n.Blocks = append(n.Blocks, id)
	}
	slices.Reverse(n.Blocks)
	n.Salt = p.salts[n.Blocks[0]]
	n.Tokens = make([]int32, 0, len(n.Blocks)*p.blockTokens)
	for _, id := range n.Blocks {
		n.Tokens = append(n.Tokens, p.tokensOf(id)...)
	}
	p.take(n.Blocks)
	for _, id := range n.Blocks {
		p.blocks[id].offered = true
		p.blocks[id].pins++
	}
	return n
}

// Unpin gives back the references of a candidate. Unlike Release it is no use:
// the blocks are evicted as if they had never been offered.
func (p *Pool) Unpin(blocks []BlockID) {
	for _, id := range slices.Backward(blocks) {
		if !p.isHeld(id) || p.blocks[id].pins == 0 {
			p.stats.Misuses++
			continue
		}
		b := &p.blocks[id]
		b.refs--
		b.pins--
		if b.refs > 0 {
			continue
		}
		p.stats.Held--
		if b.generation != 0 {
			p.cache(id)
		} else {
			p.vacate(id)
		}
	}
}

// Pinned is how many of the blocks, each named once, nobody holds but candidates:
// how many more Allocate could give if those were given back.
func (p *Pool) Pinned(blocks []BlockID) int {
	pinned := 0
	for _, id := range blocks {
		if p.isHeld(id) && p.blocks[id].refs == p.blocks[id].pins {
			pinned++
		}
	}
	return pinned
}

// Unsaved lets held blocks of a candidate that came to nothing be offered once
// more, unless somebody else has them. A second time it does nothing: what cannot be
// saved is not tried for ever.
func (p *Pool) Unsaved(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) {
			p.stats.Misuses++
			continue
		}
		if b := &p.blocks[id]; b.generation != 0 && !b.saved && !b.again {
			b.offered, b.again = false, true
		}
	}
}

// ForgetSaved lets all published blocks be offered again: who has them, too, may be gone. Those
// that are pinned are not before Unsaved says so.
func (p *Pool) ForgetSaved() {
	for i := range p.blocks {
		b := &p.blocks[i]
		if b.generation == 0 {
			continue
		}
		b.saved, b.again = false, false
		if !b.offered || b.pins > 0 {
			continue
		}
		b.offered = false
		if b.refs == 0 {
			p.stats.Unoffered++
			if p.offers {
				p.unsaved.push(BlockID(i), evictionRank(b))
			}
		}
	}
}

// Saved marks held blocks whose KV somebody else has, too. They are not
// offered. Blocks that are not published are left alone.
func (p *Pool) Saved(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) {
			p.stats.Misuses++
			continue
		}
		if b := &p.blocks[id]; b.generation != 0 {
			b.offered, b.saved = true, true
		}
	}
}
