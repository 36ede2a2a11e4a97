package kvcache

import (
	"cmp"
	"slices"
)

// Chain is a place in a pool's prefix cache: the last published block of a
// sequence's prefix, or the root of a salt. It does not keep that block there.
// The zero Chain is a lost one: nothing can be published behind it.
type Chain struct {
	kind       chainKind
	hash       Hash
	salt       string // of a root
	block      BlockID
	generation uint64
}

type chainKind int8

const (
	chainLost chainKind = iota
	chainRoot
	chainBlock
)

// Root is where the blocks of a prompt under salt begin.
func (p *Pool) Root(salt string) Chain {
	if p.root.kind != chainRoot || p.root.salt != salt {
		p.root = Chain{
			kind:  chainRoot,
			hash:  RootHash(p.modelDigest, p.arithmeticClass, salt),
			salt:  salt,
			block: none,
		}
	}
	return p.root
}

// BlockHashes is the hash of each full block of tokens under salt.
func (p *Pool) BlockHashes(salt string, tokens []int32) []Hash {
	return blockHashes(p.Root(salt).hash, tokens, p.blockTokens, p.next)
}

// MatchHashes finds the longest run of leading full blocks of tokens that are
// published under salt, takes a reference to each and appends them to dst. hashes are the
// BlockHashes of tokens, or the first few of them, which limits the search. It
// compares the tokens, so a collision of hashes cannot give wrong KV. The Chain
// is where Publish goes on.
func (p *Pool) MatchHashes(dst []BlockID, salt string, hashes []Hash, tokens []int32) ([]BlockID, Chain) {
	from := len(dst)
	dst, chain := p.find(dst, p.Root(salt), hashes, tokens)
	p.take(dst[from:])
	return dst, chain
}

// Cached is how many leading blocks of tokens are published under salt, of those
// that hashes, their BlockHashes, name. It takes and changes nothing.
func (p *Pool) Cached(salt string, hashes []Hash, tokens []int32) int {
	p.matched, _ = p.find(p.matched[:0], p.Root(salt), hashes, tokens)
	return len(p.matched)
}

// CachedBehind is how many blocks of tokens, which hashes name, are published behind chain; false if
// nothing can be published there. It takes and changes nothing.
func (p *Pool) CachedBehind(chain Chain, hashes []Hash, tokens []int32) (n int, ok bool) {
	if !p.reaches(chain) {
		return 0, false
	}
	p.matched, _ = p.find(p.matched[:0], chain, hashes, tokens)
	return len(p.matched), true
}

// Acquire takes a sequence's whole block table of total blocks, one reference
// each: first those that MatchHashes would find, then freshly allocated ones. hashes
// are BlockHashes of tokens, or the first few of them, which limits the search;
// they are an argument so that a sequence that has to try again need not hash
// again. It takes all or nothing: on false the pool is as it was, the order of
// eviction included. The table is the caller's; its first cached blocks hold
// their KV, and the Chain is where Publish goes on.
func (p *Pool) Acquire(salt string, hashes []Hash, tokens []int32, total int) (table []BlockID, cached int, chain Chain, ok bool) {
	need, chain := p.need(salt, hashes, tokens, total)
	if need > p.Available() {
		return nil, 0, Chain{}, false
	}
	cached = len(p.matched)
	p.take(p.matched)
	table = append(make([]BlockID, 0, total), p.matched...)
	table, ok = p.Allocate(table, total-cached)
	return table, cached, chain, ok
}

// CountLookup counts a prompt of so many tokens, of which hits were found. Acquire does not, since it
// may be called several times for one prompt.
func (p *Pool) CountLookup(tokens, hits int) {
	p.stats.LookupTokens += uint64(max(tokens, 0))
	p.stats.HitTokens += uint64(max(hits, 0))
}

// Need is how many of the Available blocks Acquire would take with these arguments:
// what it allocates, and what it finds that nobody holds. It takes and changes nothing.
func (p *Pool) Need(salt string, hashes []Hash, tokens []int32, total int) int {
	need, _ := p.need(salt, hashes, tokens, total)
	return need
}

// need leaves what is found in p.matched.
func (p *Pool) need(salt string, hashes []Hash, tokens []int32, total int) (need int, chain Chain) {
	p.matched, chain = p.find(p.matched[:0], p.Root(salt), hashes[:max(min(len(hashes), total), 0)], tokens)
	need = total - len(p.matched)
	for _, id := range p.matched {
		if p.blocks[id].refs == 0 {
			need++
		}
	}
	return need, chain
}

// find looks blocks behind a chain up without taking them.
func (p *Pool) find(dst []BlockID, chain Chain, hashes []Hash, tokens []int32) ([]BlockID, Chain) {
	for i, hash := range hashes {
		if len(tokens) < (i+1)*p.blockTokens {
			break
		}
		id := BlockID(p.published.find(hash))
		if id == none || !p.holds(id, chain, tokens[i*p.blockTokens:(i+1)*p.blockTokens]) {
			break
		}
		dst = append(dst, id)
		chain = p.chainAt(id)
	}
	return dst, chain
}

func (p *Pool) take(blocks []BlockID) {
	for _, id := range blocks {
		b := &p.blocks[id]
		if b.refs == 0 {
			p.uncache(id)
			p.stats.Held++
		}
		b.refs++
	}
}

// Publish makes a held, complete block findable: it holds the KV of tokens, one
// full block of them, which follow chain. If an equal block is published already
// that one is kept and this one stays private. The Chain returned is where the
// next block goes; it is lost, and the block stays private, if the block of
// chain is gone from the cache or the hash collides with another block's.
func (p *Pool) Publish(chain Chain, id BlockID, tokens []int32) Chain {
	return p.publish(chain, id, tokens, p.next)
}

// Fetch has the processor read what Publish of blocks with these hashes will need, all at a time.
func (p *Pool) Fetch(hashes []Hash) {
	for _, hash := range hashes {
		p.published.fetch(hash)
	}
}

// PublishHashed is Publish for a block whose hash the caller has, from BlockHashes.
func (p *Pool) PublishHashed(chain Chain, id BlockID, tokens []int32, hash Hash) Chain {
	return p.publish(chain, id, tokens, func(Hash, []int32) Hash { return hash })
}

func (p *Pool) publish(chain Chain, id BlockID, tokens []int32, next func(Hash, []int32) Hash) Chain {
	if !p.isHeld(id) || p.blocks[id].reserved || p.blocks[id].generation != 0 || len(tokens) != p.blockTokens {
		p.stats.Misuses++
		return Chain{}
	}
	if !p.reaches(chain) {
		return Chain{}
	}
	hash := next(chain.hash, tokens)
	if old := BlockID(p.published.find(hash)); old != none {
		if p.holds(old, chain, tokens) {
			return p.chainAt(old)
		}
		return Chain{}
	}
	p.generation++
	b := &p.blocks[id]
	b.generation, b.parent = p.generation, chain.block
	if b.parent == none && chain.salt != "" {
		p.salts[id] = chain.salt
	}
	copy(p.tokensOf(id), tokens)
	p.published.add(int32(id), hash)
	p.adopt(id)
	p.touch(id)
	p.changes.store(hash)
	p.remember(id)
	return p.chainAt(id)
}

// reaches says whether the place of a chain is still in the cache.
func (p *Pool) reaches(chain Chain) bool {
	switch chain.kind {
	case chainRoot:
		return true
	case chainBlock:
		return p.blocks[chain.block].generation == chain.generation
	}
	return false
}

// holds says whether a published block holds tokens, behind chain. That the
// parent is the very block of chain makes all tokens before equal, too.
func (p *Pool) holds(id BlockID, chain Chain, tokens []int32) bool {
	parent := p.blocks[id].parent
	return parent == chain.block && (parent != none || p.salts[id] == chain.salt) &&
		slices.Equal(p.tokensOf(id), tokens)
}

func (p *Pool) chainAt(id BlockID) Chain {
	return Chain{kind: chainBlock, hash: p.published.hash(int32(id)), block: id, generation: p.blocks[id].generation}
}

func (p *Pool) tokensOf(id BlockID) []int32 {
	return p.tokens[int(id)*p.blockTokens : (int(id)+1)*p.blockTokens]
}

// Hashes is the hash of every published block, each behind its parent.
func (p *Pool) Hashes() []Hash {
	published := make([]BlockID, 0, p.published.len)
	for id := range p.blocks {
		if p.blocks[id].generation != 0 {
			published = append(published, BlockID(id))
		}
	}
	slices.SortFunc(published, func(a, b BlockID) int {
		return cmp.Compare(p.blocks[a].generation, p.blocks[b].generation)
	})
	hashes := make([]Hash, len(published))
	for i, id := range published {
		hashes[i] = p.published.hash(int32(id))
	}
	return hashes
}

// Changes is what was published and what was taken out of the cache since the
// last call, without what cancelled out: applied to what Hashes gave then, it
// gives what Hashes gives now. Neither is longer than the pool has blocks. The
// slices are used again by the next call; both are empty if nothing changed.
func (p *Pool) Changes() (stored, removed []Hash) { return p.changes.drain(p.generation) }

// changes is the net difference of a set of hashes.
type changes struct {
	order []change // as they came
	since uint64   // the generation that was the last one when drain was called
	// net is kept once something was stored after it was removed, or removed after it was stored:
	// +1 stored, -1 removed; 0 cancelled out. nil: each hash is in order once.
	net map[Hash]int8

	stored, removed []Hash // what drain gave last
	removes         int    // of order
}

// change is a hash that was stored, +1, or removed, -1.
type change struct {
	hash Hash
	by   int8
}

// store takes in that a hash was published.
func (c *changes) store(hash Hash) { c.add(change{hash, +1}, c.removes > 0) }

// remove takes in that a hash of a generation was taken out.
func (c *changes) remove(hash Hash, generation uint64) {
	c.add(change{hash, -1}, generation > c.since)
	c.removes++
}

// add adds a change of a hash that may have changed before, or not.
func (c *changes) add(one change, again bool) {
	if c.net == nil && again {
		c.net = make(map[Hash]int8, len(c.order))
		for _, o := range c.order {
			c.net[o.hash] = o.by
		}
	}
	if c.net != nil {
		_, known := c.net[one.hash]
		c.net[one.hash] += one.by
		if known {
			return
		}
	}
	c.order = append(c.order, one)
}

func (c *changes) drain(generation uint64) (stored, removed []Hash) {
	c.stored, c.removed = c.stored[:0], c.removed[:0]
	for _, o := range c.order {
		by := o.by
		if c.net != nil {
			by = c.net[o.hash]
		}
		switch by {
		case +1:
			c.stored = append(c.stored, o.hash)
		case -1:
			c.removed = append(c.removed, o.hash)
		}
	}
	c.order, c.removes, c.net, c.since = c.order[:0], 0, nil, generation
	return c.stored, c.removed
}
