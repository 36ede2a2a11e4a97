package tokenizer

import "unicode/utf8"

// scanLlama3 is patternLlama3, with \p{N}{1,maxDigits}.
func (c *classes) scanLlama3(s string, i, maxDigits int) int {
	first := s[i]
	if first == '\'' {
		if end := contraction(s, i, true); end > 0 {
			return end
		}
	}
	k, size := c.at(s, i)
	switch k {
	case letter:
		return c.run(s, i+size, letter)
	case number:
		return c.digits(s, i, maxDigits)
	}
	// [^\r\n\p{L}\p{N}]?\p{L}+
	if first != '\r' && first != '\n' {
		if end := c.run(s, i+size, letter); end > i+size {
			return end
		}
	}
	//  ?[^\s\p{L}\p{N}]+[\r\n]*
	punctuation := i
	if first == ' ' {
		punctuation++
	}
	if end := c.run(s, punctuation, other); end > punctuation {
		return lineBreaks(s, end)
	}
	return c.whiteSpace(s, i)
}

// digits is \p{N}{1,most} at i, where there is one.
func (c *classes) digits(s string, i, most int) int {
	for range most {
		k, size := c.at(s, i)
		if size == 0 || k != number {
			break
		}
		i += size
	}
	return i
}

// whiteSpace is \s*[\r\n]+|\s+(?!\S)|\s+ at i, where there is some.
func (c *classes) whiteSpace(s string, i int) int {
	// \s*[\r\n]+: \s* takes the run, then gives back up to its last line break.
	end := c.run(s, i, space)
	for j := end; j > i; j-- {
		if b := s[j-1]; b == '\n' || b == '\r' {
			return j
		}
	}
	return spacesBefore(s, i, end)
}

// scanGPT2 is patternGPT2.
func (c *classes) scanGPT2(s string, i int) int {
	if s[i] == '\'' {
		if end := contraction(s, i, false); end > 0 {
			return end
		}
	}
	start := i
	if s[i] == ' ' {
		start++
	}
	if k, size := c.at(s, start); size > 0 && k != space {
		return c.run(s, start+size, k)
	}
	return spacesBefore(s, i, c.run(s, i, space))
}

// spacesBefore is \s+(?!\S)|\s+ over the run of white space s[i:end]: all of it at
// the end of the text; otherwise all but its last character, which is left to go
// with the word behind it, unless it is the only one.
func spacesBefore(s string, i, end int) int {
	if end == len(s) {
		return end
	}
	_, size := utf8.DecodeLastRuneInString(s[i:end])
	if end-size > i {
		return end - size
	}
	return end
}

// lineBreaks is [\r\n]*.
func lineBreaks(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// contraction is 's|'t|'re|'ve|'m|'ll|'d at the apostrophe s[i]; 0 where there is
// none. fold ignores case as Unicode does: besides S, ſ (U+017F) is an s too.
func contraction(s string, i int, fold bool) int {
	at := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		b := s[j]
		if fold && b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	var second byte
	switch at(i + 1) {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		second = 'e'
	case 'l':
		second = 'l'
	case "ſ"[0]:
		if fold && at(i+2) == "ſ"[1] {
			return i + 3
		}
		return 0
	default:
		return 0
	}
	if at(i+2) == second {
		return i + 3
	}
	return 0
}
