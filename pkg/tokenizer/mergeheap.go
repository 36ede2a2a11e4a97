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
