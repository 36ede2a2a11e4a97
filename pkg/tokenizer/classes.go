package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// A class is all that the known patterns ask about a character.
type class uint8

const (
	other  class = iota // \p{M}, \p{P}, \p{S}, controls, and bytes that are no UTF-8
	letter              // \p{L}
	number              // \p{N}: Nd, Nl and No
	space               // \s: White_Space
)

// classes answers for the Basic Multilingual Plane from a table, because this is
// asked once or more for every character of every prompt.
type classes struct {
	bmp [0x10000]class
}

func newClasses() *classes {
	c := new(classes)
	for _, set := range []struct {
		class class
		table *unicode.RangeTable
	}{{letter, unicode.Letter}, {number, unicode.Number}, {space, unicode.White_Space}} {
		for _, r := range set.table.R16 {
			for v := uint32(r.Lo); v <= uint32(r.Hi); v += uint32(r.Stride) {
				c.bmp[v] = set.class
			}
		}
	}
	return c
}

func (c *classes) of(r rune) class {
	switch {
	case int(r) < len(c.bmp):
		return c.bmp[r]
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	}
	return other // no white space lies beyond the plane
}

// at returns class and length of the character at s[i]; size 0 at the end. A byte
// that begins no character has length 1 and the class of U+FFFD, other.
func (c *classes) at(s string, i int) (class, int) {
	if i >= len(s) {
		return other, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return c.bmp[b], 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return c.of(r), size
}

// run returns the end of the run of class k that starts at i (i itself if there
// is none).
func (c *classes) run(s string, i int, k class) int {
	for {
		got, size := c.at(s, i)
		if size == 0 || got != k {
			return i
		}
		i += size
	}
}
