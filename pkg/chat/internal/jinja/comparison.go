package jinja

import (
	"fmt"
	"strings"
)

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
		if err := m.weigh(a); err != nil {
			return false, err
		}
		return equal(a, b) == (op == "=="), nil
	case "in":
		return m.contains(b, a)
	case "not in":
		ok, err := m.contains(b, a)
		return !ok, err
	}
	if err := m.weigh(a); err != nil {
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
		if err := m.spend(len(x)); err != nil {
			return false, err
		}
		return strings.Contains(x, s), nil
	case *List:
		for _, e := range x.Items {
			if err := m.weigh(e); err != nil {
				return false, err
			}
			if equal(e, v) {
				return true, nil
			}
		}
		return false, nil
	case *Dict:
		_, ok, err := m.find(x, v)
		return ok, err
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("%s is not iterable", quoted(typeName(in)))
}
