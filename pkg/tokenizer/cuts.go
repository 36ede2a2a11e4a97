package tokenizer

import "unicode/utf8"

// cutTable knows between which characters no merge can reach: where the result of no
// merge has the two side by side, the text on the left and the text on the right
// become the same tokens as if each were alone. In a vocabulary in SentencePiece's
// form that is nearly every place before a ▁, which makes words of a text that no
// pre-tokenizer has cut, and a line of it does not have to be merged as a whole.
type cutTable struct {
	ascii [utf8.RuneSelf][utf8.RuneSelf]bool // joined, by left and right
	// Of the other characters, what joins them to a neighbour. One that is in
	// no merge at all is not here.
	joins map[rune]join
	bmp   [0x10000]join
}

// join says with what a character stands side by side within the result of a merge.
type join uint8

const (
	joinsAfter  join = 1 << iota // something behind it
	joinsItself                  // itself before it
	joinsOther                   // something else before it
)

func newCutTable() *cutTable { return &cutTable{joins: make(map[rune]join)} }

// merge notes that the left of two tokens that merge ends with one character and the
// right begins with another. That is all that matters: the places inside the two are
// those of the merges that made them.
func (c *cutTable) merge(left, right string) {
	a, _ := utf8.DecodeLastRuneInString(left)
	b, _ := utf8.DecodeRuneInString(right)
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		c.ascii[a][b] = true
	}
	c.note(a, joinsAfter)
	if a == b {
		c.note(b, joinsItself)
	} else {
		c.note(b, joinsOther)
	}
}

func (c *cutTable) note(r rune, j join) {
	if int(r) < len(c.bmp) {
		c.bmp[r] |= j
		return
	}
	c.joins[r] |= j
}

func (c *cutTable) of(r rune) join {
	if int(r) < len(c.bmp) {
		return c.bmp[r]
	}
	return c.joins[r]
}

// next is the end of the stretch that begins at i: the first place where it can be
// cut, or the end of text.
func (c *cutTable) next(text string, i int) int {
	left, size := decode(text, i)
	for i += size; i < len(text); i += size {
		var right rune
		right, size = decode(text, i)
		if left < 0 || right < 0 || !c.joined(left, right) {
			return i
		}
		left = right
	}
	return len(text)
}

// joined says whether a merge may reach across between the two.
func (c *cutTable) joined(left, right rune) bool {
	if left < utf8.RuneSelf && right < utf8.RuneSelf {
		return c.ascii[left][right]
	}
	if c.of(left)&joinsAfter == 0 {
		return false
	}
	before := c.of(right)
	return before&joinsOther != 0 || before&joinsItself != 0 && left == right
}

// decode is the character at text[i], -1 for a byte that is in none.
func decode(text string, i int) (rune, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return rune(b), 1
	}
	r, size := utf8.DecodeRuneInString(text[i:])
	if r == utf8.RuneError && size == 1 {
		return -1, 1
	}
	return r, size
}
