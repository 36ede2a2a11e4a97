// Package coverage tracks which slices of a transfer were seen. Only pkg/kvtransfer uses
// it. It starts no goroutines and is not safe for concurrent use.
package coverage

import "math/bits"

// Set is a bit set over layers times blocks slices. The zero Set has no slices.
type Set struct {
	layers, blocks int
	seen           []uint64
	missing        int
}

// New returns an empty set. Neither argument may be negative.
func New(layers, blocks int) *Set {
	total := layers * blocks
	return &Set{layers: layers, blocks: blocks, seen: make([]uint64, (total+63)/64), missing: total}
}

// Add adds count blocks from first of one layer. If any of them is out of range or already
// in the set, it changes nothing and returns false.
func (s *Set) Add(layer, first, count int) bool {
	if layer < 0 || layer >= s.layers || first < 0 || count < 0 || count > s.blocks-first {
		return false
	}
	begin := layer*s.blocks + first
	if s.any(begin, begin+count) {
		return false
	}
	for i := begin; i < begin+count; {
		word, mask, next := span(i, begin+count)
		s.seen[word] |= mask
		i = next
	}
	s.missing -= count
	return true
}

// Missing is the number of slices not in the set.
func (s *Set) Missing() int { return s.missing }

// FirstMissing is the first slice, by layer and then block, not in the set; ok is false if
// there is none.
func (s *Set) FirstMissing() (layer, block int, ok bool) {
	for word, seen := range s.seen {
		if seen == ^uint64(0) {
			continue
		}
		i := word*64 + bits.TrailingZeros64(^seen)
		if i >= s.layers*s.blocks {
			break
		}
		return i / s.blocks, i % s.blocks, true
	}
	return 0, 0, false
}

// any reports whether a bit in [begin, end) is set.
func (s *Set) any(begin, end int) bool {
	for i := begin; i < end; {
		word, mask, next := span(i, end)
		if s.seen[word]&mask != 0 {
			return true
		}
		i = next
	}
	return false
}

// span masks the bits of [i, end) within the word of i. next is the first bit after that.
func span(i, end int) (word int, mask uint64, next int) {
	word = i / 64
	next = min(end, (word+1)*64)
	mask = ^uint64(0) << (i % 64)
	if rest := (word+1)*64 - next; rest > 0 {
		mask &= ^uint64(0) >> rest
	}
	return word, mask, next
}
