package jinja

import (
	"errors"
	"math"
	"slices"
	"strings"
)

func (m *machine) unary(n *unary, s *scope) any {
	v := m.eval(n.of, s)
	m.line = n.line
	if n.op == "not" {
		return !truth(v)
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return unsupported(n.op, v, v)
	case isFloat && n.op == "-":
		return -f
	case isFloat:
		return f
	case n.op == "-" && i == math.MinInt64:
		return failWith(errOverflow)
	case n.op == "-":
		return -i
	}
	return i
}

var errOverflow = errors.New("a number is too large")

func unsupported(op string, a, b any) any {
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return fail("%s", u.problem)
		}
	}
	return fail("%s cannot be used on %s and %s", op, typeName(a), typeName(b))
}

func (m *machine) binary(n *binary, s *scope) any {
	left := m.eval(n.left, s)
	switch n.op {
	case "and":
		if !truth(left) {
			return left
		}
		return m.eval(n.right, s)
	case "or":
		if truth(left) {
			return left
		}
		return m.eval(n.right, s)
	}
	right := m.eval(n.right, s)
	m.line = n.line
	switch n.op {
	case "~":
		return m.concat(m.text(left), m.text(right))
	case "+":
		switch a := left.(type) {
		case string:
			if b, ok := right.(string); ok {
				return m.concat(a, b)
			}
		case *List:
			if b, ok := right.(*List); ok && a.tuple == b.tuple {
				m.spend(elementCost * (len(a.Items) + len(b.Items)))
				return &List{Items: slices.Concat(a.Items, b.Items), tuple: a.tuple}
			}
		}
	case "*":
		if out, done := m.repeat(left, right); done {
			return out
		}
	case "%":
		if _, ok := left.(string); ok {
			return fail("formatting with %% is not supported in chat templates")
		}
	}
	return arithmetic(n.op, left, right)
}

// repeat is a string or a list times a number.
func (m *machine) repeat(a, b any) (any, bool) {
	if _, ok := a.(int64); ok {
		a, b = b, a
	}
	n, ok := b.(int64)
	if !ok {
		return nil, false
	}
	var size int
	switch x := a.(type) {
	case string:
		size = len(x)
	case *List:
		size = elementCost * len(x.Items)
	default:
		return nil, false
	}
	n = max(n, 0)
	m.spendTimes(int(n), size)
	if size == 0 { // as often as one likes
		return a, true
	}
	if x, ok := a.(string); ok {
		return strings.Repeat(x, int(n)), true
	}
	if x, ok := a.(*List); ok {
		return &List{Items: slices.Repeat(x.Items, int(n)), tuple: x.tuple}, true
	}
	return nil, false
}

func arithmetic(op string, left, right any) any {
	a, af, aFloat, aok := number(left)
	b, bf, bFloat, bok := number(right)
	if !aok || !bok {
		return unsupported(op, left, right)
	}
	if (op == "/" || op == "//" || op == "%") && bf == 0 {
		return fail("division by zero")
	}
	if aFloat || bFloat || op == "/" || op == "**" && b < 0 {
		switch op {
		case "+":
			return af + bf
		case "-":
			return af - bf
		case "*":
			return af * bf
		case "/":
			return af / bf
		case "//":
			return math.Floor(af / bf)
		case "%":
			r := math.Mod(af, bf)
			if r != 0 && (r < 0) != (bf < 0) {
				r += bf
			}
			return r
		}
		return math.Pow(af, bf)
	}
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c
		}
	case "*":
		return multiply(a, b)
	case "//":
		if a == math.MinInt64 && b == -1 {
			return failWith(errOverflow)
		}
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q
	case "%":
		if b == -1 {
			return int64(0)
		}
		r := a % b
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r
	case "**":
		out := int64(1)
		if (a == 0 || a == 1) && b > 0 {
			return a
		}
		if a == -1 {
			return 1 - 2*(b&1)
		}
		for range b {
			out = multiply(out, a)
		}
		return out
	}
	return failWith(errOverflow)
}

func multiply(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	c := a * b
	if c/b != a || a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		failWith(errOverflow)
	}
	return c
}
