package jinja

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// text takes a string: its escapes are Python's.
func (l *lexer) text(quote byte) error {
	rest := l.rest()
	end := 1
	for end < len(rest) && rest[end] != quote {
		if rest[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(rest) {
		return l.fail("a string is not closed")
	}
	value, err := l.unescape(rest[1:end])
	if err != nil {
		return err
	}
	l.emit(kindString, value)
	l.skip(end + 1)
	return nil
}

var simpleEscapes = map[byte]string{
	'\\': "\\", '\'': "'", '"': "\"", 'n': "\n", 't': "\t", 'r': "\r", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\n': "",
}

func (l *lexer) unescape(raw string) (string, error) {
	if strings.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	var out strings.Builder
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 == len(raw) {
			out.WriteByte(raw[i])
			i++
			continue
		}
		c := raw[i+1]
		i += 2
		if text, ok := simpleEscapes[c]; ok {
			out.WriteString(text)
			continue
		}
		digits, base := 0, 16
		switch {
		case c == 'x':
			digits = 2
		case c == 'u':
			digits = 4
		case c == 'U':
			digits = 8
		case c == 'N':
			return "", l.fail("\\N{…} in a string is not supported: write the character")
		case c >= '0' && c <= '7':
			i--
			base = 8
			for digits < 3 && i+digits < len(raw) && raw[i+digits] >= '0' && raw[i+digits] <= '7' {
				digits++
			}
		default: // not an escape: Python keeps it
			out.WriteByte('\\')
			out.WriteByte(c)
			continue
		}
		if i+digits > len(raw) {
			return "", l.fail("an escape in a string is cut off")
		}
		code, err := strconv.ParseUint(raw[i:i+digits], base, 32)
		if err != nil || code > utf8.MaxRune || code >= 0xd800 && code < 0xe000 {
			return "", l.fail("%q in a string is not a character", raw[i-1:i+digits])
		}
		out.WriteRune(rune(code))
		i += digits
	}
	return out.String(), nil
}
