package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	kindEOF kind = iota
	kindData
	kindVariableBegin
	kindVariableEnd
	kindBlockBegin
	kindBlockEnd
	kindName
	kindString
	kindInteger
	kindFloat
	kindOperator
)

// token is one word of a template. text of a string is its value.
type token struct {
	kind kind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case kindEOF:
		return "the end of the template"
	case kindVariableEnd:
		return "}}"
	case kindBlockEnd:
		return "%}"
	case kindData:
		return "text"
	}
	return fmt.Sprintf("%q", cut(t.text, maxNameBytes))
}

// lexer cuts a source into tokens. White space around tags is dealt with here,
// as trim_blocks and lstrip_blocks say.
type lexer struct {
	source string
	at     int
	line   int
	tokens []token
	// lineStart: what comes next begins a line of the source.
	lineStart bool
}

func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{source: source, line: 1, lineStart: true}
	for l.at < len(l.source) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.emit(kindEOF, "")
	return l.tokens, nil
}

func (l *lexer) fail(format string, args ...any) error {
	return &Error{Line: l.line, Message: fmt.Sprintf(format, args...)}
}

func (l *lexer) emit(k kind, text string) {
	l.tokens = append(l.tokens, token{k, text, l.line})
}

func (l *lexer) rest() string { return l.source[l.at:] }

// skip goes over n bytes.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.source[l.at:l.at+n], "\n")
	l.at += n
}

// root takes the text up to the next tag, and that tag.
func (l *lexer) root() error {
	rest := l.rest()
	at := -1
	for from := 0; ; {
		i := strings.IndexByte(rest[from:], '{')
		if i < 0 || from+i+1 >= len(rest) {
			break
		}
		if strings.IndexByte("{%#", rest[from+i+1]) >= 0 {
			at = from + i
			break
		}
		from += i + 1
	}
	if at < 0 {
		l.data(rest)
		l.skip(len(rest))
		return nil
	}
	tag := rest[at+1]
	l.data(l.stripped(rest[:at], tag, rest[at+2:]))
	l.skip(at + 2)
	if s := l.rest(); s != "" && (s[0] == '-' || s[0] == '+') {
		l.skip(1)
	}
	switch tag {
	case '#':
		return l.comment()
	case '{':
		l.emit(kindVariableBegin, "")
		return l.expression("}}", kindVariableEnd)
	}
	if word := strings.TrimLeftFunc(l.rest(), isSpace); strings.HasPrefix(word, "raw") && !isWord(word[3:]) {
		return l.raw()
	}
	l.emit(kindBlockBegin, "")
	return l.expression("%}", kindBlockEnd)
}

// isWord reports whether a text goes on with a letter, a digit or an underscore.
func isWord(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return text != "" && isLetter(r)
}

// stripped is the text before a tag, white space taken off.
func (l *lexer) stripped(text string, tag byte, inside string) string {
	switch {
	case strings.HasPrefix(inside, "-"):
		return strings.TrimRightFunc(text, isSpace)
	case tag == '{' || strings.HasPrefix(inside, "+"):
		return text
	}
	start := strings.LastIndexByte(text, '\n') + 1
	if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
		return text[:start]
	}
	return text
}

func (l *lexer) data(text string) {
	if text != "" {
		l.emit(kindData, text)
	}
}

// closed goes over the end of a tag, which is next, and the white space it eats.
// trims: a line break right behind it belongs to it.
func (l *lexer) closed(end string, trims bool) bool {
	rest := l.rest()
	switch {
	case strings.HasPrefix(rest, "-"+end):
		l.skip(1 + len(end))
		l.skip(len(l.rest()) - len(strings.TrimLeftFunc(l.rest(), isSpace)))
	case strings.HasPrefix(rest, end):
		l.skip(len(end))
		if trims && strings.HasPrefix(l.rest(), "\n") {
			l.skip(1)
		}
	case trims && strings.HasPrefix(rest, "+"+end):
		l.skip(1 + len(end))
	default:
		return false
	}
	l.lineStart = l.at > 0 && l.source[l.at-1] == '\n'
	return true
}

func (l *lexer) comment() error {
	end := strings.Index(l.rest(), "#}")
	if end < 0 {
		return l.fail("a comment is not closed")
	}
	if end > 0 && strings.IndexByte("-+", l.source[l.at+end-1]) >= 0 {
		end--
	}
	l.skip(end)
	l.closed("#}", true)
	return nil
}

func (l *lexer) raw() error {
	l.skip(len(l.rest()) - len(strings.TrimLeftFunc(l.rest(), isSpace)) + len("raw"))
	l.skip(len(l.rest()) - len(strings.TrimLeftFunc(l.rest(), isSpace)))
	if !l.closed("%}", false) {
		return l.fail("raw takes no arguments")
	}
	rest := l.rest()
	for from := 0; ; {
		at := strings.Index(rest[from:], "{%")
		if at < 0 {
			return l.fail("raw is not closed")
		}
		at += from
		inside := rest[at+2:]
		word := strings.TrimLeftFunc(strings.TrimPrefix(strings.TrimPrefix(inside, "-"), "+"), isSpace)
		if !strings.HasPrefix(word, "endraw") || isWord(word[6:]) {
			from = at + 2
			continue
		}
		l.data(l.stripped(rest[:at], '%', inside))
		l.skip(len(rest) - len(word) + len("endraw"))
		l.skip(len(l.rest()) - len(strings.TrimLeftFunc(l.rest(), isSpace)))
		if !l.closed("%}", true) {
			return l.fail("endraw takes no arguments")
		}
		return nil
	}
}

var operators = []string{
	"**", "//", "==", "!=", ">=", "<=",
	"+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";",
}

// expression takes the words of a tag, and its end.
func (l *lexer) expression(end string, endKind kind) error {
	began := l.line
	var open []byte
	for {
		rest := l.rest()
		if rest == "" {
			return &Error{Line: began, Message: fmt.Sprintf("a tag is not closed: %q is missing", end)}
		}
		if len(open) == 0 {
			line := l.line
			if l.closed(end, endKind == kindBlockEnd) {
				l.tokens = append(l.tokens, token{endKind, "", line})
				return nil
			}
		}
		r, width := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.skip(width)
		case r == '\'' || r == '"':
			if err := l.text(byte(r)); err != nil {
				return err
			}
		case r >= '0' && r <= '9':
			l.number()
		case isLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool { return !isLetter(r) })
			if n < 0 {
				n = len(rest)
			}
			if n > maxNameBytes {
				return l.fail("a name has more than %d bytes", maxNameBytes)
			}
			l.emit(kindName, rest[:n])
			l.skip(n)
		default:
			found := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					found = o
					break
				}
			}
			switch found {
			case "":
				return l.fail("unexpected character %q", r)
			case "(", "[", "{":
				open = append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[found])
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != found[0] {
					return l.fail("unexpected %q", found)
				}
				open = open[:len(open)-1]
			}
			l.emit(kindOperator, found)
			l.skip(len(found))
		}
	}
}

func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func isLetter(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// number takes an integer or a float.
func (l *lexer) number() {
	rest := l.rest()
	digits := func(from int) int {
		i := from
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' || rest[i] == '_' && i > from) {
			i++
		}
		return i
	}
	end, k := digits(0), kindInteger
	if end+1 < len(rest) && rest[end] == '.' && rest[end+1] >= '0' && rest[end+1] <= '9' {
		end, k = digits(end+1), kindFloat
	}
	if end < len(rest) && (rest[end] == 'e' || rest[end] == 'E') {
		exponent := end + 1
		if exponent < len(rest) && (rest[exponent] == '+' || rest[exponent] == '-') {
			exponent++
		}
		if last := digits(exponent); last > exponent {
			end, k = last, kindFloat
		}
	}
	l.emit(k, strings.ReplaceAll(rest[:end], "_", ""))
	l.skip(end)
}
