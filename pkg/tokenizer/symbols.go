package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// none is where a table has no id.
const none = -1

// symbolTable says which symbols a text begins as, before any merge: one for each
// byte, or one for each character.
type symbolTable struct {
	// bytes has the symbol of each byte, or none where the vocabulary lacks it; by
	// characters, the tokens <0x00> to <0xFF> that stand in for characters without one,
	// or none.
	bytes [256]int32
	// chars is nil where symbols are bytes.
	chars *charTable
	// unknown stands in for what has no symbol at all, or is none: then it vanishes.
	unknown     int32
	fuseUnknown bool // one for a run of them
}

// charTable has the token of each character that is one.
type charTable struct {
	bmp  [0x10000]int32
	rest map[rune]int32
}

func newCharTable() *charTable {
	c := &charTable{rest: make(map[rune]int32)}
	for i := range c.bmp {
		c.bmp[i] = none
	}
	return c
}

func (c *charTable) set(r rune, id int32) {
	if int(r) < len(c.bmp) {
		c.bmp[r] = id
		return
	}
	c.rest[r] = id
}

func (c *charTable) of(r rune) int32 {
	if int(r) < len(c.bmp) {
		return c.bmp[r]
	}
	if id, ok := c.rest[r]; ok {
		return id
	}
	return none
}

// complete says whether every text has symbols without the unknown token.
func (t *symbolTable) complete() bool {
	for _, id := range &t.bytes {
		if id == none {
			return false
		}
	}
	return true
}

// appendTo appends the symbols of text. An unknown token waits until a character
// or byte that has a symbol, as in the library: tokens of bytes overtake it. stop is asked
// now and then; its error ends the work.
func (t *symbolTable) appendTo(dst []int32, text string, stop func() error) ([]int32, error) {
	checks := newPace(stop)
	waiting := false
	if t.chars == nil {
		dst = slices.Grow(dst, len(text))
		for i := range len(text) {
			if err := checks.at(i); err != nil {
				return nil, err
			}
			if id := t.bytes[text[i]]; id != none {
				dst = append(t.appendWaiting(dst, &waiting), id)
				continue
			}
			dst = t.appendUnknown(dst, &waiting)
		}
		return t.appendWaiting(dst, &waiting), nil
	}
	dst = slices.Grow(dst, utf8.RuneCountInString(text))
	for i := 0; i < len(text); {
		if err := checks.at(i); err != nil {
			return nil, err
		}
		id, size := int32(none), 1
		if b := text[i]; b < utf8.RuneSelf {
			id = t.chars.bmp[b]
		} else {
			var r rune
			// A byte that is in no character has a symbol as a byte only.
			if r, size = utf8.DecodeRuneInString(text[i:]); r != utf8.RuneError || size > 1 {
				id = t.chars.of(r)
			}
		}
		char := text[i : i+size]
		i += size
		if id != none {
			dst = append(t.appendWaiting(dst, &waiting), id)
			continue
		}
		if t.spells(char) {
			for j := range len(char) {
				dst = append(dst, t.bytes[char[j]])
			}
			continue
		}
		dst = t.appendUnknown(dst, &waiting)
	}
	return t.appendWaiting(dst, &waiting), nil
}

// appendUnknown makes the unknown token wait for what has no symbol, if there is one.
func (t *symbolTable) appendUnknown(dst []int32, waiting *bool) []int32 {
	if t.unknown == none {
		return dst
	}
	if *waiting && !t.fuseUnknown {
		dst = append(dst, t.unknown)
	}
	*waiting = true
	return dst
}

// appendWaiting appends the unknown token if it waits.
func (t *symbolTable) appendWaiting(dst []int32, waiting *bool) []int32 {
	if !*waiting {
		return dst
	}
	*waiting = false
	return append(dst, t.unknown)
}

// spells says whether each byte of char has a token.
func (t *symbolTable) spells(char string) bool {
	for i := range len(char) {
		if t.bytes[char[i]] == none {
			return false
		}
	}
	return true
}

// byteToken is the spelling of the token that stands in for a byte.
func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }
