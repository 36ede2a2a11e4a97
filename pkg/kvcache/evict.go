package kvcache

// evict frees the cached block that was not used for longest. Blocks without
// children go first: a chain that loses its end is still useful, one that loses
// its beginning is not. An inner block goes only when all cached ones are inner,
// that is, when what hangs on them is held by sequences that have a copy of the
// beginning of their own; its descendants then stop being published.
func (p *Pool) evict() {
	root := p.idle.ids[0]
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

// unpublish takes a block without children out of the cache. Where it goes if nobody holds
// it is the caller's to say.
func (p *Pool) unpublish(id BlockID) {
	b := &p.blocks[id]
	delete(p.byHash, b.hash)
	p.changes.add(b.hash, -1)
	if b.refs == 0 {
		p.uncache(id)
	}
	p.orphan(id)
	kept := unpublished
	kept.refs, kept.pins, kept.origin, kept.condemned = b.refs, b.pins, b.origin, b.condemned
	*b = kept
}

// cache puts a published block without references among those that may be
// evicted.
func (p *Pool) cache(id BlockID) {
	p.idle.push(id)
	if !p.blocks[id].offered {
		p.stats.Unoffered++
		if p.nominates {
			p.unsaved.push(id)
		}
	}
}

// uncache takes it from there.
func (p *Pool) uncache(id BlockID) {
	p.idle.remove(id)
	if !p.blocks[id].offered {
		p.stats.Unoffered--
		if p.nominates {
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
	p.idle.fix(parent)
	p.unsaved.fix(parent)
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
	p.idle.fix(b.parent)
	p.unsaved.fix(b.parent)
}

func (p *Pool) touch(id BlockID) {
	p.tick++
	p.blocks[id].used = p.tick
}

// evictionHeap orders cached blocks: those without children first, then by time
// of last use. It is a binary heap that knows where each block is in it.
type evictionHeap struct {
	pool   *Pool
	unsave bool // it keeps unsavedIndex, not heapIndex
	ids    []BlockID
}

func (h *evictionHeap) index(id BlockID) *int32 {
	if h.unsave {
		return &h.pool.blocks[id].unsavedIndex
	}
	return &h.pool.blocks[id].heapIndex
}

func (h *evictionHeap) len() int { return len(h.ids) }

func (h *evictionHeap) less(i, j int) bool {
	a, b := &h.pool.blocks[h.ids[i]], &h.pool.blocks[h.ids[j]]
	if (a.child == none) != (b.child == none) {
		return a.child == none
	}
	return a.used < b.used
}

func (h *evictionHeap) swap(i, j int) {
	h.ids[i], h.ids[j] = h.ids[j], h.ids[i]
	*h.index(h.ids[i]) = int32(i)
	*h.index(h.ids[j]) = int32(j)
}

func (h *evictionHeap) push(id BlockID) {
	*h.index(id) = int32(len(h.ids))
	h.ids = append(h.ids, id)
	h.up(len(h.ids) - 1)
}

func (h *evictionHeap) remove(id BlockID) {
	i, last := int(*h.index(id)), len(h.ids)-1
	h.swap(i, last)
	h.ids = h.ids[:last]
	*h.index(id) = -1
	if i < last {
		h.fix(h.ids[i])
	}
}

// fix puts a block where it belongs after it changed. One that is not in the
// heap is left alone.
func (h *evictionHeap) fix(id BlockID) {
	i := int(*h.index(id))
	if i < 0 {
		return
	}
	h.up(i)
	h.down(int(*h.index(id)))
}

func (h *evictionHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *evictionHeap) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.ids); child++ {
			if h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
