package kvcache

import "slices"

// evict frees the cached block that was not used for longest. Blocks without
// children go first: a chain that loses its end is still useful, one that loses
// its beginning is not. An inner block goes only when all cached ones are inner,
// that is, when what hangs on them is held by sequences that have a copy of the
// beginning of their own; its descendants then stop being published.
func (p *Pool) evict() {
	root := p.idle.first()
	for {
		leaf := root
		for p.blocks[leaf].child != none {
			leaf = p.blocks[leaf].child
		}
		b := &p.blocks[leaf]
		if b.refs == 0 {
			p.stats.Evictions++
			switch {
			case b.saved:
				p.stats.SavedEvictions++
			case !b.offered:
				p.stats.UnofferedEvictions++
			}
		}
		if p.unpublish(leaf); b.refs == 0 {
			p.vacate(leaf)
		}
		if leaf == root {
			return
		}
	}
}

// fetch has the processor read what so many calls of evict will need, all at a time: most blocks
// are evicted with those before them in the chain.
func (p *Pool) fetch(blocks int) {
	for id := p.idle.first(); blocks > 0 && id != none; blocks-- {
		p.published.fetch(p.published.hash(int32(id)))
		id = p.blocks[id].parent
	}
}

// unpublish takes a block without children out of the cache. Where it goes if nobody holds
// it is the caller's to say.
func (p *Pool) unpublish(id BlockID) {
	b := &p.blocks[id]
	p.changes.remove(p.published.hash(int32(id)), b.generation)
	p.published.delete(int32(id))
	if b.refs == 0 {
		p.uncache(id)
	}
	p.orphan(id)
	if b.parent == none {
		delete(p.salts, id)
	}
	kept := unpublished
	kept.refs, kept.pins, kept.origin, kept.invalid = b.refs, b.pins, b.origin, b.invalid
	*b = kept
}

// cache puts a published block without references among those that may be
// evicted.
func (p *Pool) cache(id BlockID) {
	rank := evictionRank(&p.blocks[id])
	p.idle.push(id, rank)
	if !p.blocks[id].offered {
		p.stats.Unoffered++
		if p.offers {
			p.unsaved.push(id, rank)
		}
	}
}

// uncache takes it from there.
func (p *Pool) uncache(id BlockID) {
	p.idle.remove(id)
	if !p.blocks[id].offered {
		p.stats.Unoffered--
		if p.offers {
			p.unsaved.remove(id)
		}
	}
}

// adopt puts a block among its parent's children.
func (p *Pool) adopt(id BlockID) {
	parent := p.blocks[id].parent
	if parent == none {
		return
	}
	first := p.blocks[parent].child
	p.blocks[id].behind = first
	if first != none {
		p.blocks[first].before = id
	}
	p.blocks[parent].child = id
	p.rerank(parent)
}

// orphan takes a block from among its parent's children.
func (p *Pool) orphan(id BlockID) {
	b := &p.blocks[id]
	if b.parent == none {
		return
	}
	if b.behind != none {
		p.blocks[b.behind].before = b.before
	}
	if b.before != none {
		p.blocks[b.before].behind = b.behind
	} else {
		p.blocks[b.parent].child = b.behind
	}
	p.rerank(b.parent)
}

// rerank puts a block where it belongs among those that may be evicted, if it is there.
func (p *Pool) rerank(id BlockID) {
	rank := evictionRank(&p.blocks[id])
	p.idle.fix(id, rank)
	if p.offers {
		p.unsaved.fix(id, rank)
	}
}

func (p *Pool) touch(id BlockID) {
	p.tick++
	p.blocks[id].used = p.tick
}

// evictionHeap orders cached blocks: those without children first, then by time
// of last use. It is a binary heap that knows where each block is in it, and has what
// it compares at hand: of the blocks themselves it reads only those that change.
type evictionHeap struct {
	entries []evictionEntry
	index   []int32 // of each block in entries; -1: it is not there
}

type evictionEntry struct {
	rank uint64 // the least goes first
	id   BlockID
}

func newEvictionHeap(blocks int) evictionHeap {
	return evictionHeap{index: slices.Repeat([]int32{-1}, blocks)}
}

// evictionRank is the rank of a block: its time of last use, after all those without children
// if it has some.
func evictionRank(b *block) uint64 {
	if b.child != none {
		return b.used | 1<<63
	}
	return b.used
}

func (h *evictionHeap) len() int { return len(h.entries) }

// first is the block that goes first. There must be one.
func (h *evictionHeap) first() BlockID { return h.entries[0].id }

func (h *evictionHeap) put(i int, e evictionEntry) {
	h.entries[i] = e
	h.index[e.id] = int32(i)
}

func (h *evictionHeap) push(id BlockID, rank uint64) {
	h.entries = append(h.entries, evictionEntry{})
	h.up(len(h.entries)-1, evictionEntry{rank, id})
}

func (h *evictionHeap) remove(id BlockID) {
	i, last := int(h.index[id]), len(h.entries)-1
	moved := h.entries[last]
	h.entries = h.entries[:last]
	h.index[id] = -1
	if i < last {
		h.sift(i, moved)
	}
}

// fix puts a block where it belongs after its rank changed. One that is not in the
// heap is left alone.
func (h *evictionHeap) fix(id BlockID, rank uint64) {
	if i := h.index[id]; i >= 0 {
		h.sift(int(i), evictionEntry{rank, id})
	}
}

// sift puts an entry in place i or where it belongs from there.
func (h *evictionHeap) sift(i int, e evictionEntry) {
	if i > 0 && e.rank < h.entries[(i-1)/2].rank {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h *evictionHeap) up(i int, e evictionEntry) {
	for i > 0 {
		parent := (i - 1) / 2
		if e.rank >= h.entries[parent].rank {
			break
		}
		h.put(i, h.entries[parent])
		i = parent
	}
	h.put(i, e)
}

func (h *evictionHeap) down(i int, e evictionEntry) {
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			break
		}
		if right := child + 1; right < len(h.entries) && h.entries[right].rank < h.entries[child].rank {
			child = right
		}
		if h.entries[child].rank >= e.rank {
			break
		}
		h.put(i, h.entries[child])
		i = child
	}
	h.put(i, e)
}
