package jinja

import (
	"errors"
	"fmt"
	"strings"
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
