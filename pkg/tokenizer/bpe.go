package tokenizer

import (
	"math"
	"sync"
)

const (
	// shortPiece is the longest piece, in bytes, that is merged by looking for the
	// best pair again after every merge. That is quadratic, but words are short,
	// and up to about here it beats a heap.
	shortPiece = 48
	// longestPiece bounds a piece so that positions fit 31 bits.
	longestPiece = math.MaxInt32
	// keptPiece is the longest piece whose scratch memory is kept for the next.
	keptPiece = 1 << 16
	// mergesPerCheck is how many merges of one piece go by between two looks at
	// whether anybody still wants them: some milliseconds.
	mergesPerCheck = 1 << 14
)

// bpe is the model: which byte is which symbol and which pairs merge.
type bpe struct {
	symbol [256]int32
	merges mergeTable
	// whole has every token that the alphabet can spell, by its bytes; nil unless
	// the file says ignore_merges: then a piece that is a token is that token,
	// whatever the merges would make of it.
	whole   map[string]int32
	scratch sync.Pool // *mergeState
}

// appendPiece appends the tokens of one piece: of all adjacent pairs the one of
// lowest rank merges, the leftmost of several, until none is left. stop is asked
// now and then; its error ends the work.
func (m *bpe) appendPiece(dst []int32, piece string, stop func() error) ([]int32, error) {
	if m.whole != nil {
		if id, ok := m.whole[piece]; ok {
			return append(dst, id), nil
		}
	}
	if len(piece) <= shortPiece {
		return m.appendShort(dst, piece), nil
	}
	return m.appendLong(dst, piece, stop)
}

func (m *bpe) appendShort(dst []int32, piece string) []int32 {
	if len(piece) == 1 {
		return append(dst, m.symbol[piece[0]])
	}
	// ranks[i] and results[i] are of the pair (ids[i], ids[i+1]).
	var ids, results [shortPiece]int32
	var ranks [shortPiece]uint32
	n := len(piece)
	for i := range n {
		ids[i] = m.symbol[piece[i]]
		if i > 0 {
			ranks[i-1], results[i-1] = m.merges.find(ids[i-1], ids[i])
		}
	}
	for n > 1 {
		best, at := noMerge, 0
		for i, rank := range ranks[:n-1] {
			if rank < best {
				best, at = rank, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = results[at]
		n--
		copy(ids[at+1:n], ids[at+2:n+1])
		if at+1 < n {
			copy(ranks[at+1:n-1], ranks[at+2:n])
			copy(results[at+1:n-1], results[at+2:n])
			ranks[at], results[at] = m.merges.find(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1], results[at-1] = m.merges.find(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

// mergeState is the scratch memory of one long piece: its symbols as a linked list
// over their first positions, and the pairs that may merge as a heap. 21 bytes or
// so for each byte of the piece.
type mergeState struct {
	ids        []int32 // gone where the symbol was merged into the one before it
	prev, next []int32
	heap       mergeHeap
}

// gone marks a position that is no longer the start of a symbol; no id is negative.
const gone = -1

// appendLong is the same in O(n log n). A pair stays in the heap when one of its
// symbols has changed, and is dropped when it comes up: by then the pair at that
// position has another rank, or there is none.
func (m *bpe) appendLong(dst []int32, piece string, stop func() error) ([]int32, error) {
	st, _ := m.scratch.Get().(*mergeState)
	if st == nil {
		st = new(mergeState)
	}
	n := len(piece)
	st.reset(n)
	if n <= keptPiece {
		defer m.scratch.Put(st)
	}
	for i := range n {
		st.ids[i] = m.symbol[piece[i]]
		st.prev[i], st.next[i] = int32(i-1), int32(i+1)
		if i > 0 {
			if rank, _ := m.merges.find(st.ids[i-1], st.ids[i]); rank != noMerge {
				st.heap = append(st.heap, candidate(rank, i-1))
			}
		}
		if i%mergesPerCheck == 0 {
			if err := stop(); err != nil {
				return nil, err
			}
		}
	}
	st.heap.init()
	for merges := 0; len(st.heap) > 0; merges++ {
		if merges%mergesPerCheck == 0 {
			if err := stop(); err != nil {
				return nil, err
			}
		}
		rank, at := st.heap.pop()
		right := int(st.next[at])
		if st.ids[at] == gone || right == n {
			continue
		}
		now, result := m.merges.find(st.ids[at], st.ids[right])
		if now != rank {
			continue
		}
		st.ids[at], st.ids[right] = result, gone
		after := int(st.next[right])
		st.next[at] = int32(after)
		if after < n {
			st.prev[after] = int32(at)
			if rank, _ := m.merges.find(result, st.ids[after]); rank != noMerge {
				st.heap.push(candidate(rank, at))
			}
		}
		if before := int(st.prev[at]); before >= 0 {
			if rank, _ := m.merges.find(st.ids[before], result); rank != noMerge {
				st.heap.push(candidate(rank, before))
			}
		}
	}
	for i := 0; i < n; i = int(st.next[i]) {
		dst = append(dst, st.ids[i])
	}
	return dst, nil
}

func (st *mergeState) reset(n int) {
	if cap(st.ids) < n {
		st.ids, st.prev, st.next = make([]int32, n), make([]int32, n), make([]int32, n)
	}
	st.ids, st.prev, st.next = st.ids[:n], st.prev[:n], st.next[:n]
	st.heap = st.heap[:0]
}
