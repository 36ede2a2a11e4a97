package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// Template is a parsed template.
type Template struct {
	body  []statement
	bytes int
}

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
	return &Template{body: body, bytes: len(source)}, nil
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

// enter counts a level of nesting, which the function it returns leaves.
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

func (p *parser) block(word string, line int) (statement, error) {
	switch word {
	case "if":
		return p.ifBlock(line)
	case "for":
		return p.forBlock(line)
	case "set":
		return p.setBlock(line)
	case "macro":
		return p.macroBlock(line)
	case "call":
		return p.callBlock(line)
	case "with":
		return p.withBlock(line)
	case "filter":
		f, err := p.filters(nil, true)
		if err != nil {
			return nil, err
		}
		if err := p.end(); err != nil {
			return nil, err
		}
		body, err := p.closing("endfilter")
		return filterStatement{f, body, line}, err
	case "generation":
		if err := p.end(); err != nil {
			return nil, err
		}
		body, err := p.closing("endgeneration")
		return scopeStatement{body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s outside of a loop", word)
		}
		if word == "break" {
			return breakStatement{}, p.end()
		}
		return continueStatement{}, p.end()
	case "include", "import", "from", "extends":
		return nil, p.fail("%q is refused: a chat template may not read other files", word)
	case "block", "do", "autoescape", "trans", "debug":
		return nil, p.fail("the block %q is not supported in chat templates", word)
	}
	return nil, p.fail("the block %q is not known", word)
}

func (p *parser) ifBlock(line int) (statement, error) {
	var out ifStatement
	test, err := p.tuple(false)
	for {
		if err != nil {
			return nil, err
		}
		if err := p.end(); err != nil {
			return nil, err
		}
		body, ended, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		out.branches = append(out.branches, branch{test, body, line})
		line = p.now().line
		switch ended {
		case "elif":
			if test, err = p.tuple(false); err != nil {
				return nil, err
			}
			continue
		case "else":
			if err := p.end(); err != nil {
				return nil, err
			}
			body, err := p.closing("endif")
			out.branches = append(out.branches, branch{nil, body, line})
			return out, err
		}
		return out, p.end()
	}
}

func (p *parser) forBlock(line int) (statement, error) {
	out := forStatement{line: line}
	var err error
	if out.target, err = p.target(false); err != nil {
		return nil, err
	}
	if err := p.expect(kindName, "in"); err != nil {
		return nil, err
	}
	if out.over, err = p.tuple(false); err != nil {
		return nil, err
	}
	if p.skipIf(kindName, "if") {
		if out.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	out.recursive = p.skipIf(kindName, "recursive")
	if err := p.end(); err != nil {
		return nil, err
	}
	p.loops++
	body, ended, err := p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	out.body = body
	if err := p.end(); err != nil {
		return nil, err
	}
	if ended == "else" {
		out.otherwise, err = p.closing("endfor")
	}
	return out, err
}

func (p *parser) setBlock(line int) (statement, error) {
	out := setStatement{line: line}
	var err error
	if out.target, err = p.target(true); err != nil {
		return nil, err
	}
	if p.skipIf(kindOperator, "=") {
		if out.value, err = p.tuple(true); err != nil {
			return nil, err
		}
		return out, p.end()
	}
	if p.is(kindOperator, "|") {
		if out.filter, err = p.filters(nil, false); err != nil {
			return nil, err
		}
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	out.body, err = p.closing("endset")
	return out, err
}

func (p *parser) macroBlock(line int) (statement, error) {
	called, err := p.name()
	if err != nil {
		return nil, err
	}
	m := &macroStatement{name: called, line: line}
	if err := p.parameters(m); err != nil {
		return nil, err
	}
	m.body, err = p.function("endmacro")
	return m, err
}

// function is the body of a macro, whose loops are its own.
func (p *parser) function(until string) ([]statement, error) {
	if err := p.end(); err != nil {
		return nil, err
	}
	outside := p.loops
	p.loops = 0
	body, err := p.closing(until)
	p.loops = outside
	return body, err
}

func (p *parser) parameters(m *macroStatement) error {
	if err := p.expect(kindOperator, "("); err != nil {
		return err
	}
	for !p.skipIf(kindOperator, ")") {
		if len(m.names) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return err
			}
		}
		parameter, err := p.name()
		if err != nil {
			return err
		}
		var otherwise expression
		if p.skipIf(kindOperator, "=") {
			if otherwise, err = p.expression(); err != nil {
				return err
			}
		}
		m.names, m.defaults = append(m.names, parameter), append(m.defaults, otherwise)
	}
	return nil
}

func (p *parser) callBlock(line int) (statement, error) {
	m := &macroStatement{name: "caller", line: line}
	if p.is(kindOperator, "(") {
		if err := p.parameters(m); err != nil {
			return nil, err
		}
	}
	e, err := p.expression()
	if err != nil {
		return nil, err
	}
	c, ok := e.(*call)
	if !ok {
		return nil, p.fail("a call block has to call something")
	}
	m.body, err = p.function("endcall")
	return callStatement{c, m, line}, err
}

func (p *parser) withBlock(line int) (statement, error) {
	out := withStatement{line: line}
	for p.now().kind != kindBlockEnd {
		if len(out.targets) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return nil, err
			}
		}
		to, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.expect(kindOperator, "="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		out.targets, out.values = append(out.targets, to), append(out.values, value)
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	body, err := p.closing("endwith")
	out.body = body
	return out, err
}

// target takes what is assigned to; attributes: of a namespace may be.
func (p *parser) target(attributes bool) (target, error) {
	var several []target
	parenthesized := p.skipIf(kindOperator, "(")
	comma := false
	for {
		word, err := p.name()
		if err != nil {
			return target{}, err
		}
		one := target{name: word}
		if attributes && p.skipIf(kindOperator, ".") {
			if one.attribute, err = p.name(); err != nil {
				return target{}, err
			}
		}
		several = append(several, one)
		if !p.skipIf(kindOperator, ",") {
			break
		}
		comma = true
		if p.now().kind != kindName {
			break
		}
	}
	if parenthesized {
		if err := p.expect(kindOperator, ")"); err != nil {
			return target{}, err
		}
	}
	if !comma {
		return several[0], nil
	}
	return target{several: several}, nil
}
