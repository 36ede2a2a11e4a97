package kvcache

import (
	"math/bits"
	"slices"
)

// MatchInto gives, for each worker that holds the first of hashes, how many of them it holds
// without a gap, in the caller's map, which it clears first.
func (x *Index) MatchInto(dst map[string]int, hashes []Hash) map[string]int {
	clear(dst)
	x.sweep(min(x.sweepBlocks, sweepOnMatch))
	x.candidates, x.path = x.candidates[:0], x.path[:0]
	for depth, hash := range hashes {
		n := x.byHash.find(hash)
		if n == absent {
			break
		}
		e := x.entry(n)
		if depth == 0 {
			x.addHolders(e)
		}
		// Workers without this block have their answer; the others go on.
		alive := false
		for i := range x.candidates {
			here := x.holders(e, i)
			x.answer(dst, i, x.candidates[i]&^here, depth)
			x.candidates[i] &= here
			alive = alive || x.candidates[i] != 0
		}
		if !alive {
			break
		}
		x.path = append(x.path, n)
	}
	for i, word := range x.candidates {
		x.answer(dst, i, word, len(x.path))
	}
	// Touch the first block last, so that a chain is forgotten from its end.
	for _, n := range slices.Backward(x.path) {
		x.touch(n)
	}
	return dst
}

// addHolders adds the workers that hold a block to the candidates.
func (x *Index) addHolders(e *indexEntry) {
	if set := x.shared(e); set != nil {
		x.candidates = append(x.candidates, *set...)
		return
	}
	for _, slot := range e.holders {
		if slot >= 0 {
			x.candidates.set(int(slot))
		}
	}
}

// shared is the set of a block's holders if there are more than two; else nil.
func (x *Index) shared(e *indexEntry) *bitset {
	if e.holders[0] > several {
		return nil
	}
	return &x.sharer(several - e.holders[0]).holders
}

// holders is word i of the set of workers that hold a block.
func (x *Index) holders(e *indexEntry, i int) uint64 {
	if set := x.shared(e); set != nil {
		if i < len(*set) {
			return (*set)[i]
		}
		return 0
	}
	var word uint64
	for _, slot := range e.holders {
		if slot >= 0 && int(slot)/64 == i {
			word |= 1 << (slot % 64)
		}
	}
	return word
}

func (x *Index) answer(dst map[string]int, wordIndex int, word uint64, depth int) {
	for ; word != 0; word &= word - 1 {
		if name := x.names[64*wordIndex+bits.TrailingZeros64(word)]; name != "" {
			dst[name] = depth
		}
	}
}
