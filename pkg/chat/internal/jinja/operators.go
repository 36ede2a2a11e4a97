package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
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
		return m.made(a + b)
	case "+":
		switch a := left.(type) {
		case string:
			if b, ok := right.(string); ok {
				return m.made(a + b)
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
	if size > 0 && n > int64(workBudget/size) {
		return nil, true, errors.New("the template works too long: it was stopped")
	}
	if err := m.spend(size * int(n)); err != nil {
		return nil, true, err
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

func (m *machine) comparison(n *comparison, s *scope) (any, error) {
	left, err := m.eval(n.first, s)
	if err != nil {
		return nil, err
	}
	for i, op := range n.ops {
		right, err := m.eval(n.rest[i], s)
		if err != nil {
			return nil, err
		}
		m.line = n.line
		ok, err := m.compared(op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (m *machine) compared(op string, a, b any) (bool, error) {
	switch op {
	case "==", "!=":
		if err := m.weigh(a, 0); err != nil {
			return false, err
		}
		return equal(a, b) == (op == "=="), nil
	case "in":
		return m.contains(b, a)
	case "not in":
		ok, err := m.contains(b, a)
		return !ok, err
	}
	if err := m.weigh(a, 0); err != nil {
		return false, err
	}
	c, err := compare(a, b)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

func (m *machine) contains(in, v any) (bool, error) {
	switch x := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return false, fmt.Errorf("a %s cannot be in a string", typeName(v))
		}
		return strings.Contains(x, s), m.spend(len(x))
	case *List:
		for _, e := range x.Items {
			if err := m.weigh(e, 0); err != nil {
				return false, err
			}
			if equal(e, v) {
				return true, nil
			}
		}
		return false, nil
	case *Dict:
		_, ok := x.Get(v)
		return ok, nil
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("%s is not iterable", quoted(typeName(in)))
}

func (m *machine) item(n *item, s *scope) (any, error) {
	of, err := m.eval(n.of, s)
	if err != nil {
		return nil, err
	}
	key, err := m.eval(n.key, s)
	if err != nil {
		return nil, err
	}
	m.line = n.line
	return m.getItem(of, key)
}

func (m *machine) getItem(of, key any) (any, error) {
	missing := undefined{fmt.Sprintf("%s has no element %s", describe(of), shortText(key))}
	switch x := of.(type) {
	case undefined:
		return nil, errors.New(x.problem)
	case *Dict:
		if v, ok := x.Get(key); ok {
			return v, nil
		}
	case *List:
		if i, _, isFloat, ok := number(key); ok && !isFloat {
			if i < 0 {
				i += int64(len(x.Items))
			}
			if i >= 0 && i < int64(len(x.Items)) {
				return x.Items[i], nil
			}
			return missing, nil
		}
	case string:
		if i, _, isFloat, ok := number(key); ok && !isFloat {
			if err := m.spend(len(x)); err != nil {
				return nil, err
			}
			count := int64(utf8.RuneCountInString(x))
			if i < 0 {
				i += count
			}
			if i < 0 || i >= count {
				return missing, nil
			}
			for at, r := range x {
				if i == 0 {
					return x[at : at+utf8.RuneLen(r)], nil
				}
				i--
			}
		}
	}
	if attribute, ok := key.(string); ok {
		return getAttribute(of, attribute)
	}
	return missing, nil
}

// getAttribute is of.name: a method, or else an element.
func getAttribute(of any, name string) (any, error) {
	missing := undefined{fmt.Sprintf("%s has no attribute %s", describe(of), quoted(name))}
	switch x := of.(type) {
	case undefined:
		return nil, errors.New(x.problem)
	case *Dict:
		if f := dictMethod(x, name); f != nil {
			return f, nil
		}
		if v, ok := x.Get(name); ok {
			return v, nil
		}
	case *List:
		if f := listMethod(x, name); f != nil {
			return f, nil
		}
	case string:
		if f := stringMethod(x, name); f != nil {
			return f, nil
		}
	case *namespace:
		if v, ok := x.attributes.Get(name); ok {
			return v, nil
		}
	case *loop:
		if v, ok := x.attribute(name); ok {
			return v, nil
		}
	case *function:
		if name == "name" {
			return x.name, nil
		}
	}
	return missing, nil
}

func describe(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case string:
		return "a string"
	}
	return "a " + typeName(v)
}

func shortText(v any) string {
	t := text(v)
	if len(t) > 40 {
		t = strings.ToValidUTF8(t[:40], "") + "…"
	}
	return quoted(t)
}

// slice is of[start:stop:step].
func (m *machine) slice(n *slice, s *scope) (any, error) {
	of, err := m.eval(n.of, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, e := range []expression{n.start, n.stop, n.step} {
		if e == nil {
			continue
		}
		v, err := m.eval(e, s)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		b, _, isFloat, ok := number(v)
		if !ok || isFloat {
			return nil, fmt.Errorf("a slice needs whole numbers, not %s", typeName(v))
		}
		bounds[i] = &b
	}
	m.line = n.line
	switch x := of.(type) {
	case *List:
		at, err := sliced(len(x.Items), bounds)
		if err != nil {
			return nil, err
		}
		out := make([]any, len(at))
		for i, from := range at {
			out[i] = x.Items[from]
		}
		return &List{Items: out, tuple: x.tuple}, m.spend(elementCost * len(out))
	case string:
		if err := m.spend(4 * len(x)); err != nil {
			return nil, err
		}
		runes := []rune(x)
		at, err := sliced(len(runes), bounds)
		if err != nil {
			return nil, err
		}
		out := make([]rune, len(at))
		for i, from := range at {
			out[i] = runes[from]
		}
		return string(out), nil
	case undefined:
		return nil, errors.New(x.problem)
	}
	return nil, fmt.Errorf("a %s cannot be sliced", typeName(of))
}

// sliced is the indices that a slice of n elements takes, as Python counts.
func sliced(n int, bounds [3]*int64) ([]int, error) {
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, errors.New("the step of a slice is 0")
	}
	size := int64(n)
	low, high := int64(0), size
	start, stop := low, high
	if step < 0 {
		low, high = -1, size-1
		start, stop = high, low
	}
	clamp := func(b *int64, otherwise int64) int64 {
		if b == nil {
			return otherwise
		}
		v := *b
		if v < 0 {
			v = max(v, -size-1) + size
		}
		return min(max(v, low), high)
	}
	start, stop = clamp(bounds[0], start), clamp(bounds[1], stop)
	step = min(max(step, -size-1), size+1)
	var out []int
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, int(i))
	}
	return out, nil
}
