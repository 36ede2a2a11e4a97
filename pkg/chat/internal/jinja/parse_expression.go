package jinja

import (
	"math"
	"strconv"
)

// expression takes one expression, conditional ones included.
func (p *parser) expression() (expression, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	for err == nil && p.skipIf(kindName, "if") {
		c := &conditional{then: e}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skipIf(kindName, "else") {
			if c.otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		e = c
	}
	return e, err
}

// tuple takes an expression, or several with commas between; conditional: they
// may be conditional ones.
func (p *parser) tuple(conditional bool) (expression, error) {
	parse := p.or
	if conditional {
		parse = p.expression
	}
	first, err := parse()
	if err != nil || !p.is(kindOperator, ",") {
		return first, err
	}
	out := &sequence{items: []expression{first}, tuple: true}
	for p.skipIf(kindOperator, ",") {
		if p.ends() {
			break
		}
		e, err := parse()
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, e)
	}
	return out, nil
}

// ends reports whether nothing of an expression follows.
func (p *parser) ends() bool {
	t := p.now()
	return t.kind == kindEOF || t.kind == kindVariableEnd || t.kind == kindBlockEnd || t.kind == kindOperator && t.text == ")" ||
		t.kind == kindName && (t.text == "recursive" || t.text == "if")
}

// chain takes operands with operators of one rank between, from the left.
func (p *parser) chain(k kind, operand func() (expression, error), ops ...string) (expression, error) {
	left, err := operand()
	for err == nil {
		op, line := "", p.now().line
		for _, o := range ops {
			if p.skipIf(k, o) {
				op = o
				break
			}
		}
		if op == "" {
			return left, nil
		}
		var right expression
		if right, err = operand(); err == nil {
			left = &binary{op, left, right, line}
		}
	}
	return nil, err
}

func (p *parser) or() (expression, error)   { return p.chain(kindName, p.and, "or") }
func (p *parser) and() (expression, error)  { return p.chain(kindName, p.not, "and") }
func (p *parser) sum() (expression, error)  { return p.chain(kindOperator, p.join, "+", "-") }
func (p *parser) join() (expression, error) { return p.chain(kindOperator, p.product, "~") }
func (p *parser) product() (expression, error) {
	return p.chain(kindOperator, p.power, "*", "/", "//", "%")
}
func (p *parser) power() (expression, error) {
	return p.chain(kindOperator, func() (expression, error) { return p.unary(true) }, "**")
}

func (p *parser) not() (expression, error) {
	if line := p.now().line; p.skipIf(kindName, "not") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer func() { p.depth-- }()
		e, err := p.not()
		return &unary{"not", e, line}, err
	}
	return p.compare()
}

func (p *parser) compare() (expression, error) {
	out := &comparison{line: p.now().line}
	var err error
	if out.first, err = p.sum(); err != nil {
		return nil, err
	}
	for {
		op := ""
		t := p.now()
		switch {
		case t.kind == kindOperator && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			op = t.text
			p.at++
		case p.skipIf(kindName, "in"):
			op = "in"
		case p.is(kindName, "not") && p.tokens[p.at+1].kind == kindName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		out.ops, out.rest = append(out.ops, op), append(out.rest, right)
	}
	if len(out.ops) == 0 {
		return out.first, nil
	}
	return out, nil
}

func (p *parser) unary(filters bool) (expression, error) {
	var e expression
	var err error
	line := p.now().line
	switch {
	case p.is(kindOperator, "-"), p.is(kindOperator, "+"):
		op := p.next().text
		if err := p.enter(); err != nil {
			return nil, err
		}
		e, err = p.unary(false)
		p.depth--
		e = &unary{op, e, line}
	default:
		if e, err = p.primary(); err == nil {
			e, err = p.postfix(e)
		}
	}
	if err != nil || !filters {
		return e, err
	}
	return p.filters(e, false)
}

func (p *parser) primary() (expression, error) {
	t := p.next()
	switch t.kind {
	case kindName:
		switch t.text {
		case "true", "True":
			return constant{true}, nil
		case "false", "False":
			return constant{false}, nil
		case "none", "None":
			return constant{nil}, nil
		}
		return name{t.text, t.line}, nil
	case kindString:
		text := t.text
		for p.now().kind == kindString {
			text += p.next().text
		}
		return constant{text}, nil
	case kindInteger:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, &Error{Line: t.line, Message: "the number " + t.text + " is too large"}
		}
		return constant{n}, nil
	case kindFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil || math.IsInf(f, 0) {
			return nil, &Error{Line: t.line, Message: "the number " + t.text + " is too large"}
		}
		return constant{f}, nil
	case kindOperator:
		switch t.text {
		case "(":
			if p.skipIf(kindOperator, ")") {
				return &sequence{tuple: true}, nil
			}
			e, err := p.tuple(true)
			if err != nil {
				return nil, err
			}
			return e, p.expect(kindOperator, ")")
		case "[":
			items, err := p.items("]")
			return &sequence{items: items}, err
		case "{":
			return p.mapping()
		}
	}
	p.at = max(p.at-1, 0)
	return nil, p.fail("expected an expression, found %s", t)
}

// items takes expressions with commas between, up to a closing bracket.
func (p *parser) items(closing string) ([]expression, error) {
	var out []expression
	for !p.skipIf(kindOperator, closing) {
		if len(out) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return nil, err
			}
			if p.skipIf(kindOperator, closing) {
				break
			}
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func (p *parser) mapping() (expression, error) {
	out := &mapping{}
	for !p.skipIf(kindOperator, "}") {
		if len(out.keys) > 0 {
			if err := p.expect(kindOperator, ","); err != nil {
				return nil, err
			}
			if p.skipIf(kindOperator, "}") {
				break
			}
		}
		key, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expect(kindOperator, ":"); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		out.keys, out.values = append(out.keys, key), append(out.values, value)
	}
	return out, nil
}

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
					return nil, p.fail("the number %s is too large", t.text)
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
		word += "." + part
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
