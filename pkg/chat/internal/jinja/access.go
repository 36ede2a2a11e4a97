package jinja

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

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
	missing := func() (any, error) {
		return undefined{fmt.Sprintf("%s has no element %s", describe(of), shortText(key))}, m.spend(valueCost)
	}
	switch x := of.(type) {
	case undefined:
		return nil, errors.New(x.problem)
	case *Dict:
		if v, ok, err := m.find(x, key); ok || err != nil {
			return v, err
		}
	case *List:
		if i, _, isFloat, ok := number(key); ok && !isFloat {
			if i < 0 {
				i += int64(len(x.Items))
			}
			if i >= 0 && i < int64(len(x.Items)) {
				return x.Items[i], nil
			}
			return missing()
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
				return missing()
			}
			at := runeOffset(x, i)
			_, width := utf8.DecodeRuneInString(x[at:])
			return x[at : at+width], nil
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
func (m *machine) getAttribute(of any, name string) (any, error) {
	if err := m.spend(valueCost + len(name)); err != nil {
		return nil, err
	}
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
	return undefined{fmt.Sprintf("%s has no attribute %s", describe(of), shortText(name))}, m.spend(valueCost)
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
		r, err := sliced(len(x.Items), bounds)
		if err != nil {
			return nil, err
		}
		out, err := m.list(r.count)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i] = x.Items[r.start+i*r.step]
		}
		return &List{Items: out, tuple: x.tuple}, nil
	case string:
		return m.sliceText(x, bounds)
	case undefined:
		return nil, errors.New(x.problem)
	}
	return nil, fmt.Errorf("a %s cannot be sliced", typeName(of))
}

func (m *machine) sliceText(s string, bounds [3]*int64) (any, error) {
	if err := m.spend(2 * len(s)); err != nil {
		return nil, err
	}
	r, err := sliced(utf8.RuneCountInString(s), bounds)
	if err != nil {
		return nil, err
	}
	if r.step == 1 {
		s = s[runeOffset(s, int64(r.start)):]
		return s[:runeOffset(s, int64(r.count))], nil
	}
	if err := m.spend(2 * runeCost * len(s)); err != nil {
		return nil, err
	}
	runes := []rune(s)
	out := make([]rune, r.count)
	for i := range out {
		out[i] = runes[r.start+i*r.step]
	}
	return string(out), nil
}

// progression is the indices that a slice takes.
type progression struct{ start, step, count int }

// sliced is what a slice of n elements takes, as Python counts.
func sliced(n int, bounds [3]*int64) (progression, error) {
	step := int64(1)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return progression{}, errors.New("the step of a slice is 0")
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
	return progression{int(start), int(step), int(max(count, 0))}, nil
}
