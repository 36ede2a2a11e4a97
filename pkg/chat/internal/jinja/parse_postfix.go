package jinja

import (
	"strconv"
)

func (p *parser) postfix(e expression) expression {
	for {
		line := p.now().line
		switch {
		case p.skipIf(kindOperator, "."):
			t := p.next()
			switch t.kind {
			case kindName:
				e = &attribute{e, t.text, line}
			case kindInteger:
				n, err := strconv.ParseInt(t.text, 10, 64)
				if err != nil {
					p.fail("the number %s is too large", cut(t.text, maxNameBytes))
				}
				e = &item{e, constant{n}, line}
			default:
				p.fail("expected a name, found %s", t)
			}
		case p.skipIf(kindOperator, "["):
			e = p.subscript(e, line)
		case p.skipIf(kindOperator, "("):
			e = &call{e, p.arguments(), line}
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expression, line int) expression {
	s := &slice{of: of, line: line}
	colons := 0
	for _, part := range []*expression{&s.start, &s.stop, &s.step} {
		if !p.is(kindOperator, ":") && !p.is(kindOperator, "]") {
			*part = p.expression()
		}
		if colons == 2 || !p.skipIf(kindOperator, ":") {
			break
		}
		colons++
	}
	p.expect(kindOperator, "]")
	if colons > 0 {
		return s
	}
	if s.start == nil {
		p.fail("expected an index, found nothing")
	}
	return &item{of, s.start, line}
}

func (p *parser) arguments() arguments {
	var out arguments
	for taken := 0; p.another(taken, ")"); taken++ {
		switch t := p.now(); {
		case p.is(kindOperator, "**"):
			p.fail("** in a call is not supported")
		case p.skipIf(kindOperator, "*"):
			out.spread = p.expression()
		case t.kind == kindName && p.tokens[p.at+1].kind == kindOperator && p.tokens[p.at+1].text == "=":
			p.at += 2
			out.names, out.named = append(out.names, t.text), append(out.named, p.expression())
		case len(out.names) > 0 || out.spread != nil:
			p.fail("an argument without a name follows one with a name")
		default:
			out.positional = append(out.positional, p.expression())
		}
	}
	return out
}

// filters takes filters, tests and calls behind an expression. inline: the first
// filter has no bar.
func (p *parser) filters(e expression, inline bool) expression {
	for {
		line := p.now().line
		switch {
		case inline || p.skipIf(kindOperator, "|"):
			inline = false
			f := &filtered{of: e, name: p.dotted(), line: line}
			if filterOf(f.name) == nil {
				p.failAt(line, "no filter named %q", f.name)
			}
			if p.skipIf(kindOperator, "(") {
				f.args = p.arguments()
			}
			e = f
		case e != nil && p.skipIf(kindName, "is"):
			e = p.test(e, line)
		case e != nil && p.skipIf(kindOperator, "("):
			e = &call{e, p.arguments(), line}
		default:
			return e
		}
	}
}

func (p *parser) dotted() string {
	word := p.name()
	for p.skipIf(kindOperator, ".") {
		if word += "." + p.name(); len(word) > maxNameBytes {
			p.fail("a name has more than %d bytes", maxNameBytes)
		}
	}
	return word
}

func (p *parser) test(of expression, line int) expression {
	t := &tested{of: of, line: line, negate: p.skipIf(kindName, "not"), name: p.dotted()}
	if testOf(t.name) == nil {
		p.failAt(line, "no test named %q", t.name)
	}
	next := p.now()
	switch {
	case p.skipIf(kindOperator, "("):
		t.args = p.arguments()
	case next.kind == kindString, next.kind == kindInteger, next.kind == kindFloat,
		next.kind == kindOperator && (next.text == "[" || next.text == "{"),
		next.kind == kindName && !endsTest[next.text]:
		t.args.positional = []expression{p.postfix(p.primary())}
	case p.is(kindName, "is"):
		p.fail("a test cannot follow a test: put one in parentheses")
	}
	return t
}

// endsTest are the names that are no argument of a test before them.
var endsTest = map[string]bool{"else": true, "or": true, "and": true, "is": true, "if": true, "not": true, "in": true, "recursive": true}
