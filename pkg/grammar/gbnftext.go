package grammar

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// literal reads the rest of a text in quotes.
func (g *gbnf) literal() (*syntax.Regexp, error) {
	out := &syntax.Regexp{Op: syntax.OpLiteral}
	for {
		r, escaped, err := g.character(`"`)
		switch {
		case err != nil:
			return nil, err
		case r == '"' && !escaped:
			if len(out.Rune) == 0 {
				out.Op = syntax.OpEmptyMatch
			}
			return out, nil
		}
		out.Rune = append(out.Rune, r)
	}
}

// class reads the rest of a class of characters.
func (g *gbnf) class() (*syntax.Regexp, error) {
	not := g.take("^")
	var ranges []rune
	for {
		low, escaped, err := g.character("]")
		if err != nil {
			return nil, err
		}
		if low == ']' && !escaped {
			break
		}
		high := low
		if strings.HasPrefix(g.text, "-") && !strings.HasPrefix(g.text, "-]") {
			g.take("-")
			if high, _, err = g.character("]"); err != nil {
				return nil, err
			}
		}
		if high < low {
			return nil, fmt.Errorf("the range %q to %q is backwards", low, high)
		}
		ranges = append(ranges, low, high)
	}
	if not {
		ranges = complement(ranges)
	}
	return &syntax.Regexp{Op: syntax.OpCharClass, Rune: ranges}, nil
}

// complement is the characters in none of some ranges.
func complement(ranges []rune) (out []rune) {
	next := rune(0)
	for _, r := range slices.SortedFunc(slices.Chunk(ranges, 2), func(a, b []rune) int { return cmp.Compare(a[0], b[0]) }) {
		if next < r[0] {
			out = append(out, next, r[0]-1)
		}
		next = max(next, r[1]+1)
	}
	if next <= unicode.MaxRune {
		out = append(out, next, unicode.MaxRune)
	}
	return out
}

// character reads one character of a text or a class, which ends with end.
func (g *gbnf) character(end string) (r rune, escaped bool, err error) {
	r, size := utf8.DecodeRuneInString(g.text)
	if size == 0 || r == '\n' {
		return 0, false, fmt.Errorf("%q is missing", end)
	}
	g.text = g.text[size:]
	if r != '\\' {
		return r, false, nil
	}
	r, size = utf8.DecodeRuneInString(g.text)
	g.text = g.text[size:]
	switch r {
	case 'n':
		return '\n', true, nil
	case 'r':
		return '\r', true, nil
	case 't':
		return '\t', true, nil
	case '\\', '"', '[', ']', '-', '^':
		return r, true, nil
	}
	digits, is := map[rune]int{'x': 2, 'u': 4, 'U': 8}[r]
	if !is {
		return 0, false, fmt.Errorf(`\%c is no escape: those are \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH`, r)
	}
	if len(g.text) < digits {
		return 0, false, fmt.Errorf(`\%c has to be followed by %d hexadecimal digits`, r, digits)
	}
	code, err := strconv.ParseUint(g.text[:digits], 16, 32)
	if err != nil || code > unicode.MaxRune || !utf8.ValidRune(rune(code)) {
		return 0, false, fmt.Errorf(`\%c%s is no character`, r, strings.ToValidUTF8(g.text[:digits], "…"))
	}
	g.text = g.text[digits:]
	return rune(code), true, nil
}

// word reads the name of a rule; "": none comes.
func (g *gbnf) word() string {
	end := strings.IndexFunc(g.text, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
	if end < 0 {
		end = len(g.text)
	}
	name := g.text[:end]
	g.text = g.text[end:]
	return name
}

// take goes past a text if it comes.
func (g *gbnf) take(text string) bool {
	rest, comes := strings.CutPrefix(g.text, text)
	g.text = rest
	return comes
}

// space goes past spaces and comments, and past the ends of lines if told so.
func (g *gbnf) space(lines bool) {
	for g.text != "" {
		switch c := g.text[0]; {
		case c == '#':
			end := strings.IndexByte(g.text, '\n')
			if end < 0 {
				end = len(g.text)
			}
			g.text = g.text[end:]
		case c == ' ' || c == '\t':
			g.text = g.text[1:]
		case lines && (c == '\n' || c == '\r'):
			if c == '\n' {
				g.line++
			}
			g.text = g.text[1:]
		default:
			return
		}
	}
}

// next names what comes, for an error.
func (g *gbnf) next() string {
	r, size := utf8.DecodeRuneInString(g.text)
	switch {
	case size == 0:
		return "the end"
	case r == '\n' || r == '\r':
		return "the end of the line"
	}
	return strconv.Quote(string(r))
}
