package tokenizer

import (
	"math/bits"
	"slices"
)

// queueMerger merges a piece of any length, in time that is all but linear: the
// order is the heap's, lowest rank first and in it the leftmost, but each rank has a
// queue of its own. In a vocabulary that was trained a merge's parts rank before it,
// so that a queue is complete, and sorted once, by the time it is its turn; what
// comes later than that goes through a small heap beside it. Symbols are one id for
// each position and one bit that says whether a symbol still starts there, so that
// memory is some ten bytes for each symbol.
type queueMerger struct {
	ids    []int32
	starts []uint64 // and a bit behind the last symbol
	order  mergeHeap
	of     map[uint32]*rankQueue
}

// rankQueue has the positions where a pair of one rank stands, or stood.
type rankQueue struct {
	sorted  []int32 // ascending once it is this queue's turn
	next    int
	late    mergeHeap // those that came after that
	started bool
}

func (q *rankQueue) push(at int) {
	if q.started {
		q.late.push(candidate(0, at))
		return
	}
	q.sorted = append(q.sorted, int32(at))
}

// start says that it is the queue's turn.
func (q *rankQueue) start(stop func() error) error {
	if q.started {
		return nil
	}
	q.started = true
	if slices.IsSorted(q.sorted) {
		return nil
	}
	return sortPositions(q.sorted, 31, stop)
}

// sortPositions sorts positions that have bits lower than bit in which they differ,
// by one bit after the other as long as they are many, so that stop is asked in time.
func sortPositions(at []int32, bit int, stop func() error) error {
	for bit > 0 && len(at) > mergesPerCheck {
		bit--
		ones := len(at)
		for i := 0; i < ones; {
			if at[i]>>bit&1 == 0 {
				i++
			} else {
				ones--
				at[i], at[ones] = at[ones], at[i]
			}
			if (i+len(at)-ones)%mergesPerCheck == 0 {
				if err := stop(); err != nil {
					return err
				}
			}
		}
		if err := sortPositions(at[ones:], bit, stop); err != nil {
			return err
		}
		at = at[:ones]
	}
	slices.Sort(at)
	return nil
}

// pop takes the leftmost position; ok is false when there is none left.
func (q *rankQueue) pop() (at int, ok bool) {
	if q.next < len(q.sorted) && (len(q.late) == 0 || uint64(q.sorted[q.next]) <= q.late[0]) {
		q.next++
		return int(q.sorted[q.next-1]), true
	}
	if len(q.late) == 0 {
		return 0, false
	}
	_, at = q.late.pop()
	return at, true
}

// append appends the tokens that symbols become. It takes symbols over.
func (m *queueMerger) append(dst, symbols []int32, merges *mergeTable, stop func() error) ([]int32, error) {
	n := len(symbols)
	m.ids = symbols
	m.starts = make([]uint64, n/64+1)
	for i := range m.starts {
		m.starts[i] = ^uint64(0)
	}
	m.of = make(map[uint32]*rankQueue)
	m.order = m.order[:0]
	var last uint32
	var queue *rankQueue
	add := func(a, b int32, at int) {
		rank, _ := merges.find(a, b)
		if rank == noMerge {
			return
		}
		if queue == nil || rank != last {
			if queue = m.of[rank]; queue == nil {
				queue = new(rankQueue)
				m.of[rank] = queue
				m.order.push(candidate(rank, 0))
			}
			last = rank
		}
		queue.push(at)
	}
	for i := 1; i < n; i++ {
		if i%mergesPerCheck == 0 {
			if err := stop(); err != nil {
				return nil, err
			}
		}
		add(m.ids[i-1], m.ids[i], i-1)
	}
	current, turn := noMerge, (*rankQueue)(nil)
	for done := 0; len(m.order) > 0; done++ {
		if done%mergesPerCheck == 0 {
			if err := stop(); err != nil {
				return nil, err
			}
		}
		rank := uint32(m.order[0] >> 32)
		if rank != current {
			current, turn = rank, m.of[rank]
			if err := turn.start(stop); err != nil {
				return nil, err
			}
		}
		at, ok := turn.pop()
		if !ok {
			m.order.pop()
			delete(m.of, rank)
			queue, current = nil, noMerge
			continue
		}
		if !m.startsAt(at) {
			continue
		}
		right := m.after(at)
		if right >= n {
			continue
		}
		now, result := merges.find(m.ids[at], m.ids[right])
		if now != rank {
			continue
		}
		m.ids[at] = result
		m.starts[right>>6] &^= 1 << (right & 63)
		if after := m.after(right); after < n {
			add(result, m.ids[after], at)
		}
		if before := m.before(at); before >= 0 {
			add(m.ids[before], result, before)
		}
	}
	left := 0
	for _, word := range m.starts {
		left += bits.OnesCount64(word)
	}
	dst = slices.Grow(dst, left)
	for i := 0; i < n; i = m.after(i) {
		dst = append(dst, m.ids[i])
	}
	return dst, nil
}

func (m *queueMerger) startsAt(i int) bool { return m.starts[i>>6]>>(i&63)&1 != 0 }

// after is the position of the symbol behind the one at i; past the last, it is some
// position that no symbol has.
func (m *queueMerger) after(i int) int {
	i++
	word := i >> 6
	if word >= len(m.starts) {
		return i
	}
	left := m.starts[word] >> (i & 63) << (i & 63)
	for left == 0 {
		if word++; word == len(m.starts) {
			return word << 6
		}
		left = m.starts[word]
	}
	return word<<6 + bits.TrailingZeros64(left)
}

// before is the position of the symbol before the one at i, or -1.
func (m *queueMerger) before(i int) int {
	word := i >> 6
	left := m.starts[word] & (1<<(i&63) - 1)
	for left == 0 {
		if word--; word < 0 {
			return -1
		}
		left = m.starts[word]
	}
	return word<<6 + 63 - bits.LeadingZeros64(left)
}

// release lets go of the memory.
func (m *queueMerger) release() {
	m.ids, m.starts, m.of = nil, nil, nil
}
