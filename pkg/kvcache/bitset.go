package kvcache

// bitset is a set of small numbers.
type bitset []uint64

func (s *bitset) set(i int) {
	for len(*s) <= i/64 {
		*s = append(*s, 0)
	}
	(*s)[i/64] |= 1 << (i % 64)
}

func (s bitset) has(i int) bool { return i/64 < len(s) && s[i/64]&(1<<(i%64)) != 0 }

func (s bitset) unset(i int) {
	if i/64 < len(s) {
		s[i/64] &^= 1 << (i % 64)
	}
}

// unsetAll takes the numbers of another set out. It says whether there were some.
func (s bitset) unsetAll(o bitset) (some bool) {
	for i := range min(len(s), len(o)) {
		some = some || s[i]&o[i] != 0
		s[i] &^= o[i]
	}
	return some
}

func (s bitset) empty() bool {
	for _, word := range s {
		if word != 0 {
			return false
		}
	}
	return true
}
