package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxExpressionBytes bounds a regular expression.
const maxExpressionBytes = 16 << 10

// parseExpression reads a regular expression in the syntax of RE2, in which \uXXXX of ECMAScript
// stands too. Back-references and look-around are in neither.
func parseExpression(text string) (*syntax.Regexp, error) { return parse(text, false) }

// parsePattern reads a pattern of a JSON Schema: an expression in which \s and \S are those of ECMAScript.
func parsePattern(text string) (*syntax.Regexp, error) { return parse(text, true) }

func parse(text string, pattern bool) (*syntax.Regexp, error) {
	if len(text) > maxExpressionBytes {
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxExpressionBytes)
	}
	if !utf8.ValidString(text) {
		return nil, errors.New("is not valid UTF-8")
	}
	if pattern {
		text = ecmaSpaces(text)
	}
	text, err := ecmaEscapes(text)
	if err != nil {
		return nil, err
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var parse *syntax.Error
		if errors.As(err, &parse) {
			return nil, fmt.Errorf("%s: %q", parse.Code, parse.Expr)
		}
		return nil, err
	}
	return re, nil
}

// ecmaSpace are the characters of WhiteSpace and LineTerminator in ECMA-262, ecmaNotSpace all others,
// for between brackets. They begin and end with a class, so that with a hyphen beside them they are
// no range.
const (
	ecmaSpace    = `\s\x{b}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}\s`
	ecmaNotSpace = `\d\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}` +
		`\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}\d`
)

// ecmaSpaces writes \s and \S as the characters that they are in ECMA-262.
func ecmaSpaces(text string) string {
	var out strings.Builder
	class := false
	for i := 0; i < len(text); {
		n := 1
		switch rest := text[i:]; {
		case !class && strings.HasPrefix(rest, `\Q`): // up to \E nothing is special
			n = len(rest)
			if end := strings.Index(rest, `\E`); end >= 0 {
				n = end + len(`\E`)
			}
		case strings.HasPrefix(rest, `\s`), strings.HasPrefix(rest, `\S`):
			is := ecmaSpace
			if rest[1] == 'S' {
				is = ecmaNotSpace
			}
			if !class {
				is = "[" + is + "]"
			}
			out.WriteString(is)
			i += len(`\s`)
			continue
		case rest[0] == '\\':
			n = min(2, len(rest))
		case !class && rest[0] == '[':
			class = true
			for _, first := range []string{"^", "]"} { // a bracket that comes first is one of the class
				if strings.HasPrefix(rest[n:], first) {
					n++
				}
			}
		case class && strings.HasPrefix(rest, "[:"):
			if end := strings.Index(rest, ":]"); end >= 0 {
				n = end + len(":]")
			}
		case rest[0] == ']':
			class = false
		}
		out.WriteString(text[i : i+n])
		i += n
	}
	return out.String()
}

// ecmaEscapes writes \uXXXX as \x{XXXX}, pairs of surrogates as one character.
func ecmaEscapes(text string) (string, error) {
	if !strings.Contains(text, `\u`) {
		return text, nil
	}
	hex := func(s string) (rune, bool) {
		if len(s) < 6 || s[:2] != `\u` {
			return 0, false
		}
		v, err := strconv.ParseUint(s[2:6], 16, 16)
		return rune(v), err == nil
	}
	var out strings.Builder
	for i := 0; i < len(text); {
		switch {
		case text[i] != '\\' || i+1 >= len(text):
			out.WriteByte(text[i])
			i++
		case text[i+1] != 'u':
			out.WriteString(text[i : i+2])
			i += 2
		default:
			r, ok := hex(text[i:])
			if !ok {
				return "", errors.New(`\u has to be followed by four hexadecimal digits`)
			}
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex(text[i:])
				pair := utf16.DecodeRune(r, low)
				if pair == utf8.RuneError {
					return "", fmt.Errorf(`\u%04x is half of a pair`, r)
				}
				i += 6
				r = pair
			}
			fmt.Fprintf(&out, `\x{%x}`, r)
		}
	}
	return out.String(), nil
}

// anchored makes an expression that has to match a whole text of one that begins and ends it
// where its alternatives have anchors. Without search it does so everywhere; with it, what
// comes before and after an alternative without anchors may be anything.
func anchored(re *syntax.Regexp, search bool) *syntax.Regexp {
	return anchoredAt(false, anchoredAt(true, re, search), search)
}

// anchoredAt is anchored for the beginning or the end alone. The parser makes ca(?:t$|r$) of cat$|car$, so
// alternatives that stand there are looked into.
func anchoredAt(beginning bool, re *syntax.Regexp, search bool) *syntax.Regexp {
	if hasInnerAnchor(re) {
		out := &syntax.Regexp{Op: syntax.OpAlternate}
		for _, sub := range re.Sub {
			out.Sub = append(out.Sub, anchoredAt(beginning, sub, search))
		}
		return out
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = slices.Clone(re.Sub)
	}
	anchors := []syntax.Op{syntax.OpBeginText, syntax.OpBeginLine}
	if !beginning {
		anchors = []syntax.Op{syntax.OpEndText, syntax.OpEndLine}
		slices.Reverse(parts)
	}
	for len(parts) > 0 && (parts[0].Op == syntax.OpConcat || slices.Contains(anchors, parts[0].Op)) {
		if parts[0].Op != syntax.OpConcat {
			search, parts = false, parts[1:]
			continue
		}
		inner := slices.Clone(parts[0].Sub)
		if !beginning {
			slices.Reverse(inner)
		}
		parts = append(inner, parts[1:]...)
	}
	switch {
	case len(parts) > 0 && hasInnerAnchor(parts[0]):
		parts[0] = anchoredAt(beginning, parts[0], search)
	case search:
		anything := &syntax.Regexp{Op: syntax.OpStar, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
		parts = slices.Insert(parts, 0, anything)
	}
	if !beginning {
		slices.Reverse(parts)
	}
	return &syntax.Regexp{Op: syntax.OpConcat, Sub: parts}
}

// hasInnerAnchor says whether a group or one of some alternatives has an anchor.
func hasInnerAnchor(re *syntax.Regexp) bool {
	return (re.Op == syntax.OpAlternate || re.Op == syntax.OpCapture) && hasAnchor(re)
}

func hasAnchor(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpBeginText, syntax.OpBeginLine, syntax.OpEndText, syntax.OpEndLine:
		return true
	}
	return slices.ContainsFunc(re.Sub, hasAnchor)
}
