package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// expression takes one expression, conditional ones included.
func (p *parser) expression() expression {
	p.enter()
	defer func() { p.depth-- }()
	e := p.or()
	for p.skipIf(kindName, "if") {
		c := &conditional{then: e, test: p.or()}
		if p.skipIf(kindName, "else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

// tuple takes an expression, or several with commas between; conditional: they
// may be conditional ones.
func (p *parser) tuple(conditional bool) expression {
	parse := p.or
	if conditional {
		parse = p.expression
	}
	first := parse()
	if !p.is(kindOperator, ",") {
		return first
	}
	out := &sequence{items: []expression{first}, tuple: true}
	for p.skipIf(kindOperator, ",") && !p.ends() {
		out.items = append(out.items, parse())
	}
	return out
}

// ends reports whether nothing of an expression follows.
func (p *parser) ends() bool {
	t := p.now()
	return t.kind == kindEOF || t.kind == kindVariableEnd || t.kind == kindBlockEnd || t.kind == kindOperator && t.text == ")" ||
		t.kind == kindName && (t.text == "recursive" || t.text == "if")
}

// chain takes operands with operators of one rank between, from the left.
func (p *parser) chain(k kind, operand func() expression, ops ...string) expression {
	left := operand()
	for {
		t := p.now()
		if t.kind != k || !slices.Contains(ops, t.text) {
			return left
		}
		p.at++
		left = &binary{t.text, left, operand(), t.line}
	}
}

func (p *parser) or() expression      { return p.chain(kindName, p.and, "or") }
func (p *parser) and() expression     { return p.chain(kindName, p.not, "and") }
func (p *parser) sum() expression     { return p.chain(kindOperator, p.join, "+", "-") }
func (p *parser) join() expression    { return p.chain(kindOperator, p.product, "~") }
func (p *parser) product() expression { return p.chain(kindOperator, p.power, "*", "/", "//", "%") }
func (p *parser) power() expression {
	return p.chain(kindOperator, func() expression { return p.filters(p.unary(), false) }, "**")
}

func (p *parser) not() expression {
	line := p.now().line
	if !p.skipIf(kindName, "not") {
		return p.compare()
	}
	p.enter()
	defer func() { p.depth-- }()
	return &unary{"not", p.not(), line}
}

func (p *parser) compare() expression {
	out := &comparison{line: p.now().line, first: p.sum()}
	for {
		var op string
		t := p.now()
		switch {
		case t.kind == kindOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
			p.at++
		case p.skipIf(kindName, "in"):
			op = "in"
		case p.is(kindName, "not") && p.tokens[p.at+1].kind == kindName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		case len(out.ops) == 0:
			return out.first
		default:
			return out
		}
		out.ops, out.rest = append(out.ops, op), append(out.rest, p.sum())
	}
}

func (p *parser) unary() expression {
	if t := p.now(); p.skipIf(kindOperator, "-") || p.skipIf(kindOperator, "+") {
		p.enter()
		defer func() { p.depth-- }()
		return &unary{t.text, p.unary(), t.line}
	}
	return p.postfix(p.primary())
}

func (p *parser) primary() expression {
	t := p.next()
	switch t.kind {
	case kindName:
		switch t.text {
		case "true", "True":
			return constant{true}
		case "false", "False":
			return constant{false}
		case "none", "None":
			return constant{nil}
		}
		return name{t.text, t.line}
	case kindString:
		if p.now().kind != kindString {
			return constant{t.text}
		}
		var text strings.Builder
		text.WriteString(t.text)
		for p.now().kind == kindString {
			text.WriteString(p.next().text)
		}
		return constant{text.String()}
	case kindInteger:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			p.failAt(t.line, "the number %s is too large", cut(t.text, maxNameBytes))
		}
		return constant{n}
	case kindFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil || math.IsInf(f, 0) {
			p.failAt(t.line, "the number %s is too large", cut(t.text, maxNameBytes))
		}
		return constant{f}
	case kindOperator:
		switch t.text {
		case "(":
			if p.skipIf(kindOperator, ")") {
				return &sequence{tuple: true}
			}
			e := p.tuple(true)
			p.expect(kindOperator, ")")
			return e
		case "[":
			out := &sequence{}
			for p.another(len(out.items), "]") {
				out.items = append(out.items, p.expression())
			}
			return out
		case "{":
			out := &mapping{}
			for p.another(len(out.keys), "}") {
				key := p.expression()
				p.expect(kindOperator, ":")
				out.keys, out.values = append(out.keys, key), append(out.values, p.expression())
			}
			return out
		}
	}
	p.at = max(p.at-1, 0)
	p.fail("expected an expression, found %s", t)
	return nil
}

// another reports whether an element follows the taken ones, before a closing
// bracket. It takes the comma between them, and the bracket.
func (p *parser) another(taken int, closing string) bool {
	if p.err != nil || p.skipIf(kindOperator, closing) {
		return false
	}
	if taken == 0 {
		return true
	}
	p.expect(kindOperator, ",")
	return p.err == nil && !p.skipIf(kindOperator, closing)
}
