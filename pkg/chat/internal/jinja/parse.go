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
	body, _ := p.body()
	if p.err != nil {
		return nil, p.err
	}
	return &Template{body}, nil
}

// parser keeps the first error. From then on it stands at the end of the template,
// so that whatever it is in the middle of finds nothing more and returns.
type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // that break and continue would leave
	err    *Error
}

func (p *parser) now() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != kindEOF {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) { p.failAt(p.now().line, format, args...) }

func (p *parser) failAt(line int, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{Line: line, Message: fmt.Sprintf(format, args...)}
	}
	p.at = len(p.tokens) - 1
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

func (p *parser) expect(k kind, text string) {
	if !p.skipIf(k, text) {
		p.fail("expected %q, found %s", text, p.now())
	}
}

func (p *parser) name() string {
	t := p.now()
	if t.kind != kindName {
		p.fail("expected a name, found %s", t)
		return ""
	}
	p.at++
	return t.text
}

// enter counts a level of nesting. The caller takes it off depth again.
func (p *parser) enter() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested more than %d deep", maxNesting)
	}
}

// end takes the end of a block.
func (p *parser) end() { p.endOf(kindBlockEnd) }

// endOf takes the end of a tag.
func (p *parser) endOf(k kind) {
	if p.now().kind != k {
		p.fail("expected %q, found %s", token{kind: k}, p.now())
		return
	}
	p.at++
}

// body takes statements up to a block that one of the names ends, whose name it
// takes as well; without names, up to the end of the template.
func (p *parser) body(until ...string) ([]statement, string) {
	p.enter()
	defer func() { p.depth-- }()
	began := p.now().line
	var out []statement
	for {
		t := p.next()
		switch t.kind {
		case kindEOF:
			if len(until) > 0 {
				p.failAt(began, "a block is not closed: %s is missing", strings.Join(until, " or "))
			}
			return out, ""
		case kindData:
			out = append(out, data{t.text})
		case kindVariableBegin:
			out = append(out, output{p.tuple(true), t.line})
			p.endOf(kindVariableEnd)
		case kindBlockBegin:
			word := p.name()
			if slices.Contains(until, word) {
				return out, word
			}
			out = append(out, p.block(word, t.line))
		default:
			p.fail("unexpected %s", t)
		}
	}
}

// closing is a body up to one block, which holds nothing but its name.
func (p *parser) closing(until string) []statement {
	body, _ := p.body(until)
	p.end()
	return body
}
