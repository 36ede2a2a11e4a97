package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// Template is a parsed template.
type Template struct{ body []statement }

// Parse reads a template. Its error is an *Error.
func Parse(source string) (*Template, error) {
	if len(source) > MaxSourceBytes {
		return nil, &Error{Line: 1, Message: fmt.Sprintf("the template has %d bytes, more than %d", len(source), MaxSourceBytes)}
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, _, err := p.body()
	if err != nil {
		return nil, err
	}
	return &Template{body}, nil
}

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // that break and continue would leave
}

func (p *parser) now() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != kindEOF {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return &Error{Line: p.now().line, Message: fmt.Sprintf(format, args...)}
}

// is reports whether the next token is this operator or this name.
func (p *parser) is(k kind, text string) bool {
	return p.now().kind == k && p.now().text == text
}

func (p *parser) skipIf(k kind, text string) bool {
	if p.is(k, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(k kind, text string) error {
	if !p.skipIf(k, text) {
		return p.fail("expected %q, found %s", text, p.now())
	}
	return nil
}

func (p *parser) name() (string, error) {
	if t := p.now(); t.kind == kindName {
		p.at++
		return t.text, nil
	}
	return "", p.fail("expected a name, found %s", p.now())
}

// enter counts a level of nesting. The caller takes it off depth again.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("nested more than %d deep", maxNesting)
	}
	return nil
}

func (p *parser) end() error {
	if p.now().kind != kindBlockEnd {
		return p.fail("expected %q, found %s", "%}", p.now())
	}
	p.at++
	return nil
}

// body takes statements up to a block that one of the names ends, whose name it
// takes as well; without names, up to the end of the template.
func (p *parser) body(until ...string) ([]statement, string, error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer func() { p.depth-- }()
	began := p.now().line
	var out []statement
	for {
		t := p.next()
		switch t.kind {
		case kindEOF:
			if len(until) > 0 {
				return nil, "", &Error{Line: began, Message: fmt.Sprintf("a block is not closed: %s is missing", strings.Join(until, " or "))}
			}
			return out, "", nil
		case kindData:
			out = append(out, data{t.text})
		case kindVariableBegin:
			value, err := p.tuple(true)
			if err != nil {
				return nil, "", err
			}
			if p.now().kind != kindVariableEnd {
				return nil, "", p.fail("expected %q, found %s", "}}", p.now())
			}
			p.at++
			out = append(out, output{value, t.line})
		case kindBlockBegin:
			word, err := p.name()
			if err != nil {
				return nil, "", err
			}
			if slices.Contains(until, word) {
				return out, word, nil
			}
			s, err := p.block(word, t.line)
			if err != nil {
				return nil, "", err
			}
			out = append(out, s)
		default:
			return nil, "", p.fail("unexpected %s", t)
		}
	}
}

// closing is a body up to one block, which holds nothing but its name.
func (p *parser) closing(until string) ([]statement, error) {
	body, _, err := p.body(until)
	if err != nil {
		return nil, err
	}
	return body, p.end()
}
