package grammar

import "math/bits"

// byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }

func (s *byteSet) add(b byte) { s[b>>6] |= 1 << (b & 63) }

// addRange adds the bytes from lo to hi.
func (s *byteSet) addRange(lo, hi byte) {
	for word := lo >> 6; word <= hi>>6; word++ {
		bitsOf := ^uint64(0)
		if word == lo>>6 {
			bitsOf &= ^uint64(0) << (lo & 63)
		}
		if word == hi>>6 {
			bitsOf &= ^uint64(0) >> (63 - hi&63)
		}
		s[word] |= bitsOf
	}
}

func (s *byteSet) addAll(other *byteSet) {
	for i, word := range other {
		s[i] |= word
	}
}

func (s *byteSet) count() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// all gives the bytes in order.
func (s *byteSet) all(yield func(b byte) bool) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			if !yield(byte(i<<6 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}
