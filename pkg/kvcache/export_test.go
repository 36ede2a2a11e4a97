package kvcache

// Weaken makes a pool's hashes collide all the time: they keep bits bits.
func (p *Pool) Weaken(bits int) {
	p.next = func(parent Hash, tokens []int32) Hash {
		return parent.Next(tokens) & (1<<bits - 1)
	}
}

// Reconsider lets cached blocks be nominated once more.
func (p *Pool) Reconsider(blocks []BlockID) {
	for _, id := range blocks {
		if p.blocks[id].offered {
			p.blocks[id].offered = false
			p.stats.Unoffered++
			p.unsaved.push(id, evictionRank(&p.blocks[id]))
		}
	}
}

// SweepBy lets every call clear so many blocks of retired generations.
func (x *Index) SweepBy(blocks int) { x.sweepBlocks = blocks }
