package tokenizer

import "math/bits"

// noMerge is the rank of a pair that does not merge.
const noMerge = ^uint32(0)

// mergeTable maps a pair of ids to the rank of its merge and the id that comes
// out: a hash table with open addressing, three times as fast as a map here, where
// one look-up is most of the work.
type mergeTable struct {
	slots []mergeSlot // a power of two, at most half full
	shift uint        // 64 - log2(len(slots))
}

type mergeSlot struct {
	pair   uint64
	rank   uint32 // noMerge: free
	result int32
}

func newMergeTable(n int) mergeTable {
	size := 2 << bits.Len(uint(n))
	t := mergeTable{slots: make([]mergeSlot, size), shift: uint(64 - bits.TrailingZeros(uint(size)))}
	for i := range t.slots {
		t.slots[i].rank = noMerge
	}
	return t
}

// slot is where pair is, or where it would go.
func (t *mergeTable) slot(pair uint64) *mergeSlot {
	mask := uint64(len(t.slots) - 1)
	// Fibonacci hashing: the product's high bits depend on all bits of the pair.
	for i := pair * 0x9E3779B97F4A7C15 >> t.shift; ; i++ {
		s := &t.slots[i&mask]
		if s.pair == pair || s.rank == noMerge {
			return s
		}
	}
}

// put adds a merge; of several for one pair the last stands.
func (t *mergeTable) put(a, b int32, rank uint32, result int32) {
	pair := uint64(uint32(a))<<32 | uint64(uint32(b))
	*t.slot(pair) = mergeSlot{pair: pair, rank: rank, result: result}
}

// find returns noMerge as the rank of a pair that does not merge.
func (t *mergeTable) find(a, b int32) (rank uint32, result int32) {
	s := t.slot(uint64(uint32(a))<<32 | uint64(uint32(b)))
	return s.rank, s.result
}
