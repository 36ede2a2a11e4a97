package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// path is an attribute of a value, as "function.name" or a number names it.
func (m *machine) path(v, by any) (any, error) {
	if s, ok := by.(string); ok {
		for _, part := range strings.Split(s, ".") {
			var key any = part
			if n, err := strconv.ParseInt(part, 10, 64); err == nil {
				key = n
			}
			if d, ok := v.(*Dict); ok {
				found, ok := d.Get(key)
				if !ok {
					found = undefined{"a dict has no element " + quoted(part)}
				}
				v = found
				continue
			}
			var err error
			if v, err = m.getItem(v, key); err != nil {
				return nil, err
			}
		}
		return v, nil
	}
	return m.getItem(v, by)
}

// mapFilter is map(attribute=…), map(attribute=…, default=…) and map("filter", …).
func mapFilter(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	apply := func(e any) (any, error) { return nil, errors.New("needs an attribute or a filter") }
	if by, ok := p.named.Get("attribute"); ok && len(p.args) == 0 {
		otherwise, hasDefault := p.named.Get("default")
		apply = func(e any) (any, error) {
			out, err := m.path(e, by)
			if _, missing := out.(undefined); missing && hasDefault {
				return otherwise, nil
			}
			return out, err
		}
	} else if len(p.args) > 0 {
		name, ok := p.args[0].(string)
		if !ok || filterOf(name) == nil {
			return nil, fmt.Errorf("no filter named %s", shortText(p.args[0]))
		}
		apply = func(e any) (any, error) { return m.applyFilter(name, e, p.args[1:], p.named) }
	}
	out := make([]any, len(all))
	for i, e := range all {
		if out[i], err = apply(e); err != nil {
			return nil, err
		}
		if err := m.spend(stepCost); err != nil {
			return nil, err
		}
	}
	return list(out), nil
}

// choose is select, reject, selectattr and rejectattr.
func choose(byAttribute, keep bool) filter {
	return func(m *machine, v any, p parameters) (any, error) {
		all, err := m.iterate(v)
		if err != nil {
			return nil, err
		}
		args := p.args
		var by any
		if byAttribute {
			if len(args) == 0 {
				return nil, errors.New("needs an attribute")
			}
			by, args = args[0], args[1:]
		}
		passes := func(v any) (bool, error) { return truth(v), nil }
		if len(args) > 0 {
			name, _ := args[0].(string)
			t := testOf(name)
			if t == nil {
				return nil, fmt.Errorf("no test named %s", shortText(args[0]))
			}
			passes = func(v any) (bool, error) { return t(m, v, args[1:]) }
		}
		out := []any{}
		for _, e := range all {
			of := e
			if byAttribute {
				if of, err = m.path(e, by); err != nil {
					return nil, err
				}
			}
			ok, err := passes(of)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out = append(out, e)
			}
			if err := m.spend(stepCost); err != nil {
				return nil, err
			}
		}
		return list(out), nil
	}
}

func lowered(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

// sorted sorts by a key, stably.
func (m *machine) sorted(all []any, key func(any) (any, error), backwards, caseSensitive bool) (any, error) {
	type keyed struct{ key, value any }
	pairs := make([]keyed, len(all))
	for i, v := range all {
		k, err := key(v)
		if err != nil {
			return nil, err
		}
		if err := m.weigh(k, 0); err != nil {
			return nil, err
		}
		if !caseSensitive {
			k = lowered(k)
		}
		pairs[i] = keyed{k, v}
	}
	var failed error
	slices.SortStableFunc(pairs, func(a, b keyed) int {
		if failed == nil {
			failed = m.spend(stepCost)
		}
		c, err := compare(a.key, b.key)
		failed = errors.Join(failed, err)
		if backwards {
			return -c
		}
		return c
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]any, len(pairs))
	for i, p := range pairs {
		out[i] = p.value
	}
	return list(out), nil
}

func sortFilter(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	by, has := p.get(2, "attribute")
	return m.sorted(all, func(v any) (any, error) {
		if !has || by == nil {
			return v, nil
		}
		return m.path(v, by)
	}, p.truth(0, "reverse", false), p.truth(1, "case_sensitive", false))
}

func unique(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	by, has := p.get(1, "attribute")
	seen, out := NewDict(), []any{}
	for _, e := range all {
		key := e
		if has && by != nil {
			if key, err = m.path(e, by); err != nil {
				return nil, err
			}
		}
		if !p.truth(0, "case_sensitive", false) {
			key = lowered(key)
		}
		if !hashable(key) {
			return nil, fmt.Errorf("a %s cannot be compared with others here", typeName(key))
		}
		if _, ok := seen.Get(key); !ok {
			seen.Set(key, true)
			out = append(out, e)
		}
	}
	return list(out), m.spend(elementCost * len(all))
}

// extreme is max and min.
func extreme(sign int) filter {
	return func(m *machine, v any, p parameters) (any, error) {
		all, err := m.iterate(v)
		if err != nil || len(all) == 0 {
			return undefined{"there is no aggregated item, the sequence is empty"}, err
		}
		by, has := p.get(1, "attribute")
		var best, bestKey any
		for i, e := range all {
			key := e
			if has && by != nil {
				if key, err = m.path(e, by); err != nil {
					return nil, err
				}
			}
			if !p.truth(0, "case_sensitive", false) {
				key = lowered(key)
			}
			if err := m.weigh(key, 0); err != nil {
				return nil, err
			}
			if i > 0 {
				c, err := compare(key, bestKey)
				if err != nil {
					return nil, err
				}
				if c*sign <= 0 {
					continue
				}
			}
			best, bestKey = e, key
		}
		return best, nil
	}
}

func sum(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	by, has := p.get(0, "attribute")
	total, ok := p.get(1, "start")
	if !ok {
		total = int64(0)
	}
	for _, e := range all {
		if has && by != nil {
			if e, err = m.path(e, by); err != nil {
				return nil, err
			}
		}
		if total, err = arithmetic("+", total, e); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func toInt(_ *machine, v any, p parameters) (any, error) {
	otherwise, ok := p.get(0, "default")
	if !ok {
		otherwise = int64(0)
	}
	base, err := p.number(1, "base", 10)
	if err != nil {
		return nil, err
	}
	if i, f, isFloat, ok := number(v); ok {
		if !isFloat {
			return i, nil
		}
		if math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
		return otherwise, nil
	}
	s, ok := v.(string)
	if !ok || base < 2 || base > 36 {
		return otherwise, nil
	}
	s = strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", "")
	if n, err := strconv.ParseInt(s, int(base), 64); err == nil {
		return n, nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
		return int64(f), nil
	}
	return otherwise, nil
}

func toFloat(_ *machine, v any, p parameters) (any, error) {
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if otherwise, ok := p.get(0, "default"); ok {
		return otherwise, nil
	}
	return 0.0, nil
}

func round(_ *machine, v any, p parameters) (any, error) {
	whole, f, isFloat, ok := number(v)
	if !ok {
		return nil, unsupported("round", v, v)
	}
	digits, err := p.number(0, "precision", 0)
	if err != nil {
		return nil, err
	}
	method, err := p.text(1, "method", "common")
	if err != nil {
		return nil, err
	}
	scale := math.Pow(10, float64(min(max(digits, -300), 300)))
	switch method {
	case "common":
		if !isFloat && digits >= 0 {
			return whole, nil
		}
		if digits >= 0 && digits <= 300 { // the nearest decimal, as Python rounds
			out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
			return out, err
		}
		return math.RoundToEven(f*scale) / scale, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("method has to be common, ceil or floor")
}
