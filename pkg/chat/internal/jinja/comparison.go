package jinja

import (
	"strings"
)

func (m *machine) comparison(n *comparison, s *scope) any {
	left := m.eval(n.first, s)
	for i, op := range n.ops {
		right := m.eval(n.rest[i], s)
		m.line = n.line
		if !m.compared(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (m *machine) compared(op string, a, b any) bool {
	switch op {
	case "==", "!=":
		m.weigh(a)
		return equal(a, b) == (op == "==")
	case "in":
		return m.contains(b, a)
	case "not in":
		return !m.contains(b, a)
	}
	m.weigh(a)
	c := compare(a, b)
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (m *machine) contains(in, v any) bool {
	switch x := in.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			fail("a %s cannot be in a string", typeName(v))
		}
		m.spend(len(x))
		return strings.Contains(x, s)
	case *List:
		for _, e := range x.Items {
			m.weigh(e)
			if equal(e, v) {
				return true
			}
		}
	case *Dict:
		_, ok := m.find(x, v)
		return ok
	case undefined:
	default:
		fail("%s is not iterable", quoted(typeName(in)))
	}
	return false
}
