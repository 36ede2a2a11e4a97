package tokenizer

// mergeHeap is a binary heap, least first, of pairs that may merge: the rank in the
// high 32 bits, the position in the low, so that order is by rank, then by position.
type mergeHeap []uint64

func candidate(rank uint32, at int) uint64 { return uint64(rank)<<32 | uint64(uint32(at)) }

func (h mergeHeap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *mergeHeap) push(c uint64) {
	*h = append(*h, c)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent] <= c {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = c
}

func (h *mergeHeap) pop() (rank uint32, at int) {
	s := *h
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	*h = s[:last]
	h.down(0)
	return uint32(top >> 32), int(uint32(top))
}

func (h mergeHeap) down(i int) {
	if i >= len(h) {
		return
	}
	c := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if c <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = c
}

// heapMerger merges a piece in O(n log n), with one heap of all pairs that may merge
// and the symbols as a linked list over their first positions.
type heapMerger struct {
	ids        []int32 // gone where the symbol was merged into the one before it
	prev, next []int32
	heap       mergeHeap
}

// gone marks a position that is no longer the start of a symbol; no id is negative.
const gone = -1

// append appends the tokens that symbols become. A pair stays in the heap when one
// of its symbols has changed, and is dropped when it comes up: by then the pair at
// that position has another rank, or there is none.
func (h *heapMerger) append(dst, symbols []int32, merges *mergeTable, stop func() error) ([]int32, error) {
	n := len(symbols)
	h.reset(n)
	copy(h.ids, symbols)
	for i := range n {
		h.prev[i], h.next[i] = int32(i-1), int32(i+1)
		if i > 0 {
			if rank, _ := merges.find(h.ids[i-1], h.ids[i]); rank != noMerge {
				h.heap = append(h.heap, candidate(rank, i-1))
			}
		}
	}
	h.heap.init()
	for done := 0; len(h.heap) > 0; done++ {
		if done%mergesPerCheck == 0 {
			if err := stop(); err != nil {
				return nil, err
			}
		}
		rank, at := h.heap.pop()
		right := int(h.next[at])
		if h.ids[at] == gone || right == n {
			continue
		}
		now, result := merges.find(h.ids[at], h.ids[right])
		if now != rank {
			continue
		}
		h.ids[at], h.ids[right] = result, gone
		after := int(h.next[right])
		h.next[at] = int32(after)
		if after < n {
			h.prev[after] = int32(at)
			if rank, _ := merges.find(result, h.ids[after]); rank != noMerge {
				h.heap.push(candidate(rank, at))
			}
		}
		if before := int(h.prev[at]); before >= 0 {
			if rank, _ := merges.find(h.ids[before], result); rank != noMerge {
				h.heap.push(candidate(rank, before))
			}
		}
	}
	for i := 0; i < n; i = int(h.next[i]) {
		dst = append(dst, h.ids[i])
	}
	return dst, nil
}

func (h *heapMerger) reset(n int) {
	if cap(h.ids) < n {
		h.ids, h.prev, h.next = make([]int32, n), make([]int32, n), make([]int32, n)
	}
	h.ids, h.prev, h.next = h.ids[:n], h.prev[:n], h.next[:n]
	h.heap = h.heap[:0]
}
