package kvcache

// Weaken makes a pool's hashes collide all the time: they keep bits bits.
func (p *Pool) Weaken(bits int) {
	p.next = func(parent Hash, tokens []int32) Hash {
		return parent.Next(tokens) & (1<<bits - 1)
	}
}

// Reconsider lets cached blocks be offered once more.
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

// Slots is how many generations the index has had at a time.
func (x *Index) Slots() int { return len(x.names) }

// Match is MatchHashes with all BlockHashes of tokens.
func (p *Pool) Match(dst []BlockID, salt string, tokens []int32) ([]BlockID, Chain) {
	return p.MatchHashes(dst, salt, p.BlockHashes(salt, tokens), tokens)
}

// Match is MatchInto into a new map.
func (x *Index) Match(hashes []Hash) map[string]int {
	return x.MatchInto(make(map[string]int), hashes)
}
