package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

func (m *machine) unary(n *unary, s *scope) (any, error) {
	v, err := m.eval(n.of, s)
	if err != nil {
		return nil, err
	}
	m.line = n.line
	if n.op == "not" {
		return !truth(v), nil
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, unsupported(n.op, v, v)
	case isFloat && n.op == "-":
		return -f, nil
	case isFloat:
		return f, nil
	case n.op == "-" && i == math.MinInt64:
		return nil, errOverflow
	case n.op == "-":
		return -i, nil
	}
	return i, nil
}

var errOverflow = errors.New("a number is too large")

func unsupported(op string, a, b any) error {
	for _, v := range []any{a, b} {
		if u, ok := v.(undefined); ok {
			return errors.New(u.problem)
		}
	}
	return fmt.Errorf("%s cannot be used on %s and %s", op, typeName(a), typeName(b))
}

func (m *machine) binary(n *binary, s *scope) (any, error) {
	left, err := m.eval(n.left, s)
	if err != nil {
		return nil, err
	}
	switch n.op {
	case "and":
		if !truth(left) {
			return left, nil
		}
		return m.eval(n.right, s)
	case "or":
		if truth(left) {
			return left, nil
		}
		return m.eval(n.right, s)
	}
	right, err := m.eval(n.right, s)
	if err != nil {
		return nil, err
	}
	m.line = n.line
	switch n.op {
	case "~":
		a, err := m.text(left)
		if err != nil {
			return nil, err
		}
		b, err := m.text(right)
		if err != nil {
			return nil, err
		}
		return m.concat(a, b)
	case "+":
		switch a := left.(type) {
		case string:
			if b, ok := right.(string); ok {
				return m.concat(a, b)
			}
		case *List:
			if b, ok := right.(*List); ok && a.tuple == b.tuple {
				if err := m.spend(elementCost * (len(a.Items) + len(b.Items))); err != nil {
					return nil, err
				}
				return &List{Items: slices.Concat(a.Items, b.Items), tuple: a.tuple}, nil
			}
		}
	case "*":
		if out, done, err := m.repeat(left, right); done {
			return out, err
		}
	case "%":
		if _, ok := left.(string); ok {
			return nil, errors.New("formatting with % is not supported in chat templates")
		}
	}
	return arithmetic(n.op, left, right)
}

// repeat is a string or a list times a number.
func (m *machine) repeat(a, b any) (any, bool, error) {
	if _, ok := a.(int64); ok {
		a, b = b, a
	}
	n, ok := b.(int64)
	if !ok {
		return nil, false, nil
	}
	size, repeatable := 0, true
	switch x := a.(type) {
	case string:
		size = len(x)
	case *List:
		size = elementCost * len(x.Items)
	default:
		repeatable = false
	}
	if !repeatable {
		return nil, false, nil
	}
	n = max(n, 0)
	if err := m.spendTimes(int(n), size); err != nil {
		return nil, true, err
	}
	if size == 0 { // as often as one likes
		return a, true, nil
	}
	if x, ok := a.(string); ok {
		return strings.Repeat(x, int(n)), true, nil
	}
	if x, ok := a.(*List); ok {
		return &List{Items: slices.Repeat(x.Items, int(n)), tuple: x.tuple}, true, nil
	}
	return nil, false, nil
}

func arithmetic(op string, left, right any) (any, error) {
	a, af, aFloat, aok := number(left)
	b, bf, bFloat, bok := number(right)
	if !aok || !bok {
		return nil, unsupported(op, left, right)
	}
	if (op == "/" || op == "//" || op == "%") && bf == 0 {
		return nil, errors.New("division by zero")
	}
	if aFloat || bFloat || op == "/" || op == "**" && b < 0 {
		switch op {
		case "+":
			return af + bf, nil
		case "-":
			return af - bf, nil
		case "*":
			return af * bf, nil
		case "/":
			return af / bf, nil
		case "//":
			return math.Floor(af / bf), nil
		case "%":
			r := math.Mod(af, bf)
			if r != 0 && (r < 0) != (bf < 0) {
				r += bf
			}
			return r, nil
		}
		return math.Pow(af, bf), nil
	}
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c, nil
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c, nil
		}
	case "*":
		product, err := multiply(a, b)
		return product, err
	case "//":
		if a == math.MinInt64 && b == -1 {
			return nil, errOverflow
		}
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q, nil
	case "%":
		if b == -1 {
			return int64(0), nil
		}
		r := a % b
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, nil
	case "**":
		out := int64(1)
		if (a == 0 || a == 1) && b > 0 {
			return a, nil
		}
		if a == -1 {
			return 1 - 2*(b&1), nil
		}
		for range b {
			next, err := multiply(out, a)
			if err != nil {
				return nil, err
			}
			out = next
		}
		return out, nil
	}
	return nil, errOverflow
}

func multiply(a, b int64) (int64, error) {
	if a == 0 || b == 0 {
		return 0, nil
	}
	c := a * b
	if c/b != a || a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		return 0, errOverflow
	}
	return c, nil
}
