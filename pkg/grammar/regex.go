package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExpressionBytes bounds a regular expression.
const maxExpressionBytes = 16 << 10

// parseExpression reads a regular expression in the syntax of RE2, in which \uXXXX of ECMAScript
// stands too. Back-references and look-around are in neither.
func parseExpression(text string) (*syntax.Regexp, error) {
	if len(text) > maxExpressionBytes {
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxExpressionBytes)
	}
	if !utf8.ValidString(text) {
		return nil, errors.New("is not valid UTF-8")
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
			if r >= 0xD800 && r <= 0xDBFF {
				low, ok := hex(text[i:])
				if !ok || low < 0xDC00 || low > 0xDFFF {
					return "", fmt.Errorf(`\u%04x is half of a pair`, r)
				}
				i += 6
				r = (r-0xD800)<<10 + (low - 0xDC00) + 0x10000
			} else if r >= 0xDC00 && r <= 0xDFFF {
				return "", fmt.Errorf(`\u%04x is half of a pair`, r)
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
	anything := &syntax.Regexp{Op: syntax.OpStar, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
	var one func(re *syntax.Regexp) *syntax.Regexp
	one = func(re *syntax.Regexp) *syntax.Regexp {
		if re.Op == syntax.OpAlternate {
			alternatives := &syntax.Regexp{Op: syntax.OpAlternate}
			for _, sub := range re.Sub {
				alternatives.Sub = append(alternatives.Sub, one(sub))
			}
			return alternatives
		}
		if re.Op == syntax.OpCapture && hasAnchor(re.Sub[0]) {
			return one(re.Sub[0])
		}
		parts := []*syntax.Regexp{re}
		if re.Op == syntax.OpConcat {
			parts = slices.Clone(re.Sub)
		}
		begins, ends := false, false
		for len(parts) > 0 && (parts[0].Op == syntax.OpBeginText || parts[0].Op == syntax.OpBeginLine) {
			begins, parts = true, parts[1:]
		}
		for len(parts) > 0 && (parts[len(parts)-1].Op == syntax.OpEndText || parts[len(parts)-1].Op == syntax.OpEndLine) {
			ends, parts = true, parts[:len(parts)-1]
		}
		if search && !begins {
			parts = slices.Insert(parts, 0, anything)
		}
		if search && !ends {
			parts = append(parts, anything)
		}
		return &syntax.Regexp{Op: syntax.OpConcat, Sub: parts}
	}
	return one(re)
}

func hasAnchor(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpBeginText, syntax.OpBeginLine, syntax.OpEndText, syntax.OpEndLine:
		return true
	}
	return slices.ContainsFunc(re.Sub, hasAnchor)
}
