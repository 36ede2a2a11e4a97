package jinja

import (
	"fmt"
	"unicode/utf8"
)

func (m *machine) item(n *item, s *scope) any {
	of := m.eval(n.of, s)
	key := m.eval(n.key, s)
	m.line = n.line
	return m.getItem(of, key)
}

func (m *machine) getItem(of, key any) any {
	missing := func() any {
		m.spend(valueCost)
		return undefined{fmt.Sprintf("%s has no element %s", describe(of), shortText(key))}
	}
	switch x := of.(type) {
	case undefined:
		return fail("%s", x.problem)
	case *Dict:
		if v, ok := m.find(x, key); ok {
			return v
		}
	case *List:
		if i, _, isFloat, ok := number(key); ok && !isFloat {
			if i < 0 {
				i += int64(len(x.Items))
			}
			if i >= 0 && i < int64(len(x.Items)) {
				return x.Items[i]
			}
			return missing()
		}
	case string:
		if i, _, isFloat, ok := number(key); ok && !isFloat {
			m.spend(len(x))
			count := int64(utf8.RuneCountInString(x))
			if i < 0 {
				i += count
			}
			if i < 0 || i >= count {
				return missing()
			}
			at := runeOffset(x, i)
			_, width := utf8.DecodeRuneInString(x[at:])
			return x[at : at+width]
		}
	}
	if attribute, ok := key.(string); ok {
		return m.getAttribute(of, attribute)
	}
	return missing()
}

// runeOffset is where the i-th character of a text begins.
func runeOffset(s string, i int64) int {
	for at := range s {
		if i == 0 {
			return at
		}
		i--
	}
	return len(s)
}

// getAttribute is of.name: a method, or else an element.
func (m *machine) getAttribute(of any, name string) any {
	m.spend(valueCost + len(name))
	switch x := of.(type) {
	case undefined:
		return fail("%s", x.problem)
	case *Dict:
		if f := dictMethod(x, name); f != nil {
			return f
		}
		if v, ok := x.Get(name); ok {
			return v
		}
	case *List:
		if f := listMethod(x, name); f != nil {
			return f
		}
	case string:
		if f := stringMethod(x, name); f != nil {
			return f
		}
	case *namespace:
		if v, ok := x.attributes.Get(name); ok {
			return v
		}
	case *loop:
		if v, ok := x.attribute(name); ok {
			return v
		}
	case *function:
		if name == "name" {
			return x.name
		}
	}
	m.spend(valueCost)
	return undefined{fmt.Sprintf("%s has no attribute %s", describe(of), shortText(name))}
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

// slice is of[start:stop:step].
func (m *machine) slice(n *slice, s *scope) any {
	of := m.eval(n.of, s)
	var bounds [3]*int64
	for i, e := range []expression{n.start, n.stop, n.step} {
		if e == nil {
			continue
		}
		v := m.eval(e, s)
		if v == nil {
			continue
		}
		b, _, isFloat, ok := number(v)
		if !ok || isFloat {
			return fail("a slice needs whole numbers, not %s", typeName(v))
		}
		bounds[i] = &b
	}
	m.line = n.line
	switch x := of.(type) {
	case *List:
		r := sliced(len(x.Items), bounds)
		out := m.list(r.count)
		for i := range out {
			out[i] = x.Items[r.start+i*r.step]
		}
		return &List{Items: out, tuple: x.tuple}
	case string:
		return m.sliceText(x, bounds)
	case undefined:
		return fail("%s", x.problem)
	}
	return fail("a %s cannot be sliced", typeName(of))
}

func (m *machine) sliceText(s string, bounds [3]*int64) any {
	m.spend(2 * len(s))
	r := sliced(utf8.RuneCountInString(s), bounds)
	if r.step == 1 {
		s = s[runeOffset(s, int64(r.start)):]
		return s[:runeOffset(s, int64(r.count))]
	}
	m.spend(2 * runeCost * len(s))
	runes := []rune(s)
	out := make([]rune, r.count)
	for i := range out {
		out[i] = runes[r.start+i*r.step]
	}
	return string(out)
}

// progression is the indices that a slice takes.
type progression struct{ start, step, count int }

// sliced is what a slice of n elements takes, as Python counts.
func sliced(n int, bounds [3]*int64) progression {
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		fail("the step of a slice is 0")
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
	towards := int64(1)
	if step < 0 {
		towards = -1
	}
	count := (stop - start + step - towards) / step
	return progression{int(start), int(step), int(max(count, 0))}
}
