package speculation

import "math/bits"

const (
	// LongestMatch is how many of a sequence's last tokens have to stand somewhere before, if that
	// many do.
	LongestMatch = 4
	// ShortestMatch is how many at least. What one token alone says of the next is little, but is asked
	// for only where steps have room (Planner).
	ShortestMatch = 1

	// lookupSlots is the most places that a Lookup remembers, four bytes each.
	lookupSlots = 1 << 16
	leastSlots  = 1 << 8
)

// Text is a sequence of tokens in two parts, as a scheduler has it.
type Text struct{ Prompt, Generated []int32 }

// Len is the number of tokens.
func (t Text) Len() int { return len(t.Prompt) + len(t.Generated) }

func (t Text) at(i int) int32 {
	if i < len(t.Prompt) {
		return t.Prompt[i]
	}
	return t.Generated[i-len(t.Prompt)]
}

// Lookup finds where the last tokens of a text stood before. It remembers the last place of
// each run of ShortestMatch to LongestMatch tokens, in a table of bounded size in which later
// ones take the place of earlier ones, so that of a very long text it knows the end. What is
// in the table is only a hint: the tokens are compared. The zero Lookup knows nothing.
type Lookup struct {
	slots []int32 // positions after a run, by its hash; 0: none
	known int     // the runs that end before this position are in slots
}

// Extend takes in what the text has become: the same, with more at its end. It reads at most
// so many tokens and says whether it has read all.
func (l *Lookup) Extend(t Text, most int) bool {
	// Of the last token nothing follows yet.
	end := t.Len() - 1
	if end-l.known > most {
		end = l.known + most
	}
	for ; l.known < end; l.known++ {
		l.grow(t)
		for n := ShortestMatch; n <= LongestMatch && n <= l.known+1; n++ {
			l.slots[l.slot(t, l.known+1, n)] = int32(l.known + 1)
		}
	}
	return l.known >= t.Len()-1
}

// grow makes the table large enough for the text. What was in a smaller one is taken in again.
func (l *Lookup) grow(t Text) {
	const runs = LongestMatch - ShortestMatch + 1
	if l.slots != nil && (len(l.slots) == lookupSlots || l.known*runs < len(l.slots)) {
		return
	}
	size := max(leastSlots, 1<<bits.Len(uint(t.Len()*runs)))
	l.slots = make([]int32, min(size, lookupSlots))
	again := l.known
	for l.known = 0; l.known < again; l.known++ {
		for n := ShortestMatch; n <= LongestMatch && n <= l.known+1; n++ {
			l.slots[l.slot(t, l.known+1, n)] = int32(l.known + 1)
		}
	}
}

// slot is where the run of n tokens that ends before a position is remembered.
func (l *Lookup) slot(t Text, end, n int) uint64 {
	h := uint64(n)
	for i := end - n; i < end; i++ {
		h = (h ^ uint64(uint32(t.at(i)))) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h & uint64(len(l.slots)-1)
}

// Find is the position after the last place where the end of the text stood before, and how
// many tokens are the same there: the more, the better. Extend must have read all of the text.
// 0 if it stood nowhere.
func (l *Lookup) Find(t Text) (position, matched int) {
	if l.slots == nil {
		return 0, 0
	}
	length := t.Len()
	for n := min(LongestMatch, length-1); n >= ShortestMatch; n-- {
		if at := int(l.slots[l.slot(t, length, n)]); at > 0 && t.same(at, length, n) {
			return at, n
		}
	}
	return 0, 0
}

// same says whether the n tokens before two positions are the same.
func (t Text) same(a, b, n int) bool {
	if a < n {
		return false
	}
	for i := 1; i <= n; i++ {
		if t.at(a-i) != t.at(b-i) {
			return false
		}
	}
	return true
}

// AppendFrom appends n tokens of the text from a position on. Where they reach past its end
// they go on with themselves: what repeats itself goes on to.
func (t Text) AppendFrom(dst []int32, position, n int) []int32 {
	first, length := len(dst), t.Len()
	for i := position; i < position+n; i++ {
		if i < length {
			dst = append(dst, t.at(i))
		} else {
			dst = append(dst, dst[first+i-length])
		}
	}
	return dst
}
