package kvcache

// Weaken makes a pool's hashes collide all the time: they keep bits bits.
func (p *Pool) Weaken(bits int) {
	p.next = func(parent Hash, tokens []int32) Hash {
		return parent.Next(tokens) & (1<<bits - 1)
	}
}
