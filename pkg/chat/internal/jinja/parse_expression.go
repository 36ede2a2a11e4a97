package jinja

import (
	"math"
	"strconv"
	"strings"
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
		if p.now().kind != kindString {
			return constant{t.text}, nil
		}
		var text strings.Builder
		text.WriteString(t.text)
		for p.now().kind == kindString {
			text.WriteString(p.next().text)
		}
		return constant{text.String()}, nil
	case kindInteger:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, &Error{Line: t.line, Message: "the number " + cut(t.text, maxNameBytes) + " is too large"}
		}
		return constant{n}, nil
	case kindFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil || math.IsInf(f, 0) {
			return nil, &Error{Line: t.line, Message: "the number " + cut(t.text, maxNameBytes) + " is too large"}
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
