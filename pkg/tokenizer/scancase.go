package tokenizer

import "unicode"

// A caseClass is what the patterns that cut where small letters meet capitals ask
// of a character: whether it may stand in the first part of a word, in the second,
// or in both.
type caseClass uint8

const (
	caseless caseClass = 0
	upper    caseClass = 1 << 0        // \p{Lu}, \p{Lt}
	lower    caseClass = 1 << 1        // \p{Ll}
	either   caseClass = upper | lower // \p{Lm}, \p{Lo}, \p{M}
)

// caseClasses answers for the Basic Multilingual Plane from a table.
type caseClasses struct {
	*classes
	bmp [0x10000]caseClass
}

func newCaseClasses(c *classes) *caseClasses {
	cases := &caseClasses{classes: c}
	for r := range cases.bmp {
		cases.bmp[r] = caseClassOf(rune(r))
	}
	return cases
}

func caseClassOf(r rune) caseClass {
	switch {
	case unicode.IsUpper(r), unicode.IsTitle(r):
		return upper
	case unicode.Is(unicode.Ll, r):
		return lower
	case unicode.IsLetter(r), unicode.Is(unicode.M, r):
		return either
	}
	return caseless
}

func (c *caseClasses) at(s string, i int) (caseClass, int) {
	if i >= len(s) {
		return caseless, 0
	}
	r, size := decode(s, i)
	switch {
	case r < 0:
		return caseless, 1
	case int(r) < len(c.bmp):
		return c.bmp[r], size
	}
	return caseClassOf(r), size
}

// run returns the end of the run of characters of part that starts at i, and the end
// of its last character that is in both parts (0 where there is none).
func (c *caseClasses) run(s string, i int, part caseClass) (end, lastEither int) {
	for {
		k, size := c.at(s, i)
		if size == 0 || k&part == 0 {
			return i, lastEither
		}
		i += size
		if k == either {
			lastEither = i
		}
	}
}

// word is [first part]*[second part]+ or else [first part]+[second part]*, at i; 0
// where neither matches. Where no small letter follows the first part, the first
// expression gives back as much of it as can be a second part: up to the last
// character that is in both.
func (c *caseClasses) word(s string, i int, second bool) int {
	end, lastEither := c.run(s, i, upper)
	if !second {
		if end > i {
			return end
		}
		return 0
	}
	if all, _ := c.run(s, end, lower); all > end {
		return all
	}
	return lastEither
}

// scanCase is patternTekken, and with contractions behind words and three digits
// patternO200k.
func (c *caseClasses) scanCase(s string, i, maxDigits int, contractions bool) int {
	if end := c.anyWord(s, i); end > 0 {
		if contractions && end < len(s) && s[end] == '\'' {
			if longer := contraction(s, end, true); longer > 0 {
				return longer
			}
		}
		return end
	}
	if k, _ := c.classes.at(s, i); k == number {
		return c.digits(s, i, maxDigits)
	}
	punctuation := i
	if s[i] == ' ' {
		punctuation++
	}
	if end := c.classes.run(s, punctuation, other); end > punctuation {
		for end < len(s) && (s[end] == '\n' || s[end] == '\r' || s[end] == '/') {
			end++
		}
		return end
	}
	return c.whiteSpace(s, i)
}

// anyWord is the first two alternatives: a word with one character before it that is
// neither letter, number nor line break, or else without one; 0 where none matches.
func (c *caseClasses) anyWord(s string, i int) int {
	behind := i // where the word begins that has a character before it
	if k, size := c.classes.at(s, i); (k == other || k == space) && s[i] != '\n' && s[i] != '\r' {
		behind += size
	}
	for _, second := range [...]bool{true, false} {
		if behind > i {
			if end := c.word(s, behind, second); end > 0 {
				return end
			}
		}
		if end := c.word(s, i, second); end > 0 {
			return end
		}
	}
	return 0
}
