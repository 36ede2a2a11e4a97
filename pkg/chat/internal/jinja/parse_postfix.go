package jinja

import (
	"strconv"
)

func (p *parser) postfix(e expression) (expression, error) {
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
					return nil, p.fail("the number %s is too large", cut(t.text, maxNameBytes))
				}
				e = &item{e, constant{n}, line}
			default:
				return nil, p.fail("expected a name, found %s", t)
			}
		case p.skipIf(kindOperator, "["):
			var err error
			if e, err = p.subscript(e, line); err != nil {
				return nil, err
			}
		case p.skipIf(kindOperator, "("):
			args, err := p.arguments()
			if err != nil {
				return nil, err
			}
			e = &call{e, args, line}
		default:
			return e, nil
		}
	}
}

func (p *parser) subscript(of expression, line int) (expression, error) {
	s := &slice{of: of, line: line}
	colons := 0
	for _, part := range []*expression{&s.start, &s.stop, &s.step} {
		if !p.is(kindOperator, ":") && !p.is(kindOperator, "]") {
			e, err := p.expression()
			if err != nil {
				return nil, err
			}
			*part = e
		}
		if colons == 2 || !p.skipIf(kindOperator, ":") {
			break
		}
		colons++
	}
	if err := p.expect(kindOperator, "]"); err != nil {
		return nil, err
	}
	if colons > 0 {
		return s, nil
	}
	if s.start == nil {
		return nil, p.fail("expected an index, found nothing")
	}
	return &item{of, s.start, line}, nil
}

func (p *parser) arguments() (arguments, error) {
	var out arguments
	for first := true; !p.skipIf(kindOperator, ")"); first = false {
		if !first {
			if err := p.expect(kindOperator, ","); err != nil {
				return out, err
			}
			if p.skipIf(kindOperator, ")") {
				break
			}
		}
		switch t := p.now(); {
		case p.is(kindOperator, "**"):
			return out, p.fail("** in a call is not supported")
		case p.skipIf(kindOperator, "*"):
			e, err := p.expression()
			if err != nil {
				return out, err
			}
			out.spread = e
		case t.kind == kindName && p.tokens[p.at+1].kind == kindOperator && p.tokens[p.at+1].text == "=":
			p.at += 2
			e, err := p.expression()
			if err != nil {
				return out, err
			}
			out.names, out.named = append(out.names, t.text), append(out.named, e)
		default:
			if len(out.names) > 0 || out.spread != nil {
				return out, p.fail("an argument without a name follows one with a name")
			}
			e, err := p.expression()
			if err != nil {
				return out, err
			}
			out.positional = append(out.positional, e)
		}
	}
	return out, nil
}

// filters takes filters, tests and calls behind an expression. inline: the first
// filter has no bar.
func (p *parser) filters(e expression, inline bool) (expression, error) {
	for {
		line := p.now().line
		switch {
		case inline || p.skipIf(kindOperator, "|"):
			inline = false
			word, err := p.dotted()
			if err != nil {
				return nil, err
			}
			if filterOf(word) == nil {
				return nil, &Error{Line: line, Message: "no filter named " + strconv.Quote(word)}
			}
			f := &filtered{of: e, name: word, line: line}
			if p.skipIf(kindOperator, "(") {
				if f.args, err = p.arguments(); err != nil {
					return nil, err
				}
			}
			e = f
		case e != nil && p.skipIf(kindName, "is"):
			t, err := p.test(e, line)
			if err != nil {
				return nil, err
			}
			e = t
		case e != nil && p.skipIf(kindOperator, "("):
			args, err := p.arguments()
			if err != nil {
				return nil, err
			}
			e = &call{e, args, line}
		default:
			return e, nil
		}
	}
}

func (p *parser) dotted() (string, error) {
	word, err := p.name()
	for err == nil && p.skipIf(kindOperator, ".") {
		var part string
		part, err = p.name()
		if word += "." + part; len(word) > maxNameBytes {
			return "", p.fail("a name has more than %d bytes", maxNameBytes)
		}
	}
	return word, err
}

func (p *parser) test(of expression, line int) (expression, error) {
	t := &tested{of: of, line: line, negate: p.skipIf(kindName, "not")}
	var err error
	if t.name, err = p.dotted(); err != nil {
		return nil, err
	}
	if testOf(t.name) == nil {
		return nil, &Error{Line: line, Message: "no test named " + strconv.Quote(t.name)}
	}
	next := p.now()
	switch {
	case p.skipIf(kindOperator, "("):
		t.args, err = p.arguments()
	case next.kind == kindString, next.kind == kindInteger, next.kind == kindFloat,
		next.kind == kindOperator && (next.text == "[" || next.text == "{"),
		next.kind == kindName && !endsTest[next.text]:
		var argument expression
		if argument, err = p.primary(); err == nil {
			argument, err = p.postfix(argument)
		}
		t.args.positional = []expression{argument}
	case p.is(kindName, "is"):
		return nil, p.fail("a test cannot follow a test: put one in parentheses")
	}
	return t, err
}

// endsTest are the names that are no argument of a test before them.
var endsTest = map[string]bool{"else": true, "or": true, "and": true, "is": true, "if": true, "not": true, "in": true, "recursive": true}
