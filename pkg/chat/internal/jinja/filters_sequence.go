package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// path is the keys that lead to an attribute, as "function.name" or a number names
// it. Not given: it leads nowhere.
func (m *machine) path(by any, given bool) ([]any, error) {
	s, ok := by.(string)
	switch {
	case !given || by == nil:
		return nil, nil
	case !ok:
		return []any{by}, nil
	}
	if err := m.spend(len(s)); err != nil {
		return nil, err
	}
	if err := m.spendTimes(strings.Count(s, ".")+1, valueCost); err != nil {
		return nil, err
	}
	var keys []any
	for part := range strings.SplitSeq(s, ".") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			keys = append(keys, n)
		} else {
			keys = append(keys, part)
		}
	}
	return keys, nil
}

// follow goes from a value along a path.
func (m *machine) follow(v any, path []any) (any, error) {
	for _, key := range path {
		if err := m.spend(stepCost); err != nil {
			return nil, err
		}
		_, isText := key.(string)
		d, isDict := v.(*Dict)
		var err error
		if isDict && isText { // its elements, and not its methods
			var ok bool
			if v, ok, err = m.find(d, key); !ok {
				v = undefined{"a dict has no element " + shortText(key)}
			}
		} else {
			v, err = m.getItem(v, key)
		}
		if err != nil {
			return nil, err
		}
	}
	return v, nil
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
		path, err := m.path(by, true)
		if err != nil {
			return nil, err
		}
		apply = func(e any) (any, error) {
			out, err := m.follow(e, path)
			if _, missing := out.(undefined); missing && hasDefault {
				return otherwise, nil
			}
			return out, err
		}
	} else if len(p.args) > 0 {
		if err := m.hash(p.args[0]); err != nil {
			return nil, err
		}
		name, ok := p.args[0].(string)
		if !ok || filterOf(name) == nil {
			return nil, fmt.Errorf("no filter named %s", shortText(p.args[0]))
		}
		apply = func(e any) (any, error) { return m.applyFilter(name, e, p.args[1:], p.named) }
	}
	out, err := m.list(len(all))
	if err != nil {
		return nil, err
	}
	for i, e := range all {
		if err := m.spend(stepCost); err != nil {
			return nil, err
		}
		if out[i], err = apply(e); err != nil {
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
		var by []any
		if byAttribute {
			if len(args) == 0 {
				return nil, errors.New("needs an attribute")
			}
			if by, err = m.path(args[0], true); err != nil {
				return nil, err
			}
			args = args[1:]
		}
		passes := func(v any) (bool, error) { return truth(v), nil }
		if len(args) > 0 {
			if err := m.hash(args[0]); err != nil {
				return nil, err
			}
			name, _ := args[0].(string)
			t := testOf(name)
			if t == nil {
				return nil, fmt.Errorf("no test named %s", shortText(args[0]))
			}
			passes = func(v any) (bool, error) { return t(m, v, args[1:]) }
		}
		out := []any{}
		for _, e := range all {
			if err := m.spend(stepCost + elementCost); err != nil {
				return nil, err
			}
			of, err := m.follow(e, by)
			if err != nil {
				return nil, err
			}
			ok, err := passes(of)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out = append(out, e)
			}
		}
		return list(out), nil
	}
}

// lowered is a key that does not tell cases apart, if it should not.
func (m *machine) lowered(v any, caseSensitive bool) (any, error) {
	s, ok := v.(string)
	if !ok || caseSensitive {
		return v, nil
	}
	if err := m.spendTimes(len(s), runeCost); err != nil {
		return nil, err
	}
	return strings.ToLower(s), nil
}

// sorted sorts by a key, stably.
func (m *machine) sorted(all []any, key func(any) (any, error), backwards, caseSensitive bool) (any, error) {
	type keyed struct {
		key, value any
		cost       int
	}
	if err := m.spendTimes(len(all), valueCost); err != nil {
		return nil, err
	}
	pairs := make([]keyed, len(all))
	for i, v := range all {
		k, err := key(v)
		if err != nil {
			return nil, err
		}
		if k, err = m.lowered(k, caseSensitive); err != nil {
			return nil, err
		}
		cost, err := m.weight(k)
		if err != nil {
			return nil, err
		}
		pairs[i] = keyed{k, v, cost}
	}
	var failed error
	slices.SortStableFunc(pairs, func(a, b keyed) int {
		if failed != nil {
			return 0
		}
		if failed = m.spend(stepCost + min(a.cost, b.cost)); failed != nil {
			return 0
		}
		var c int
		c, failed = compare(a.key, b.key)
		if backwards {
			return -c
		}
		return c
	})
	if failed != nil {
		return nil, failed
	}
	out, err := m.list(len(pairs))
	if err != nil {
		return nil, err
	}
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
	by, err := m.path(p.get(2, "attribute"))
	if err != nil {
		return nil, err
	}
	return m.sorted(all, func(v any) (any, error) { return m.follow(v, by) }, p.truth(0, "reverse", false), p.truth(1, "case_sensitive", false))
}

func unique(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	by, err := m.path(p.get(1, "attribute"))
	if err != nil {
		return nil, err
	}
	seen, out := NewDict(), []any{}
	for _, e := range all {
		key, err := m.follow(e, by)
		if err != nil {
			return nil, err
		}
		if key, err = m.lowered(key, p.truth(0, "case_sensitive", false)); err != nil {
			return nil, err
		}
		if !hashable(key) {
			return nil, fmt.Errorf("a %s cannot be compared with others here", typeName(key))
		}
		_, known, err := m.find(seen, key)
		if err != nil {
			return nil, err
		}
		if !known {
			if err := m.spend(entryCost); err != nil {
				return nil, err
			}
			seen.Set(key, true)
			out = append(out, e)
		}
	}
	return list(out), nil
}

// extreme is max and min.
func extreme(sign int) filter {
	return func(m *machine, v any, p parameters) (any, error) {
		all, err := m.iterate(v)
		if err != nil || len(all) == 0 {
			return undefined{"there is no aggregated item, the sequence is empty"}, err
		}
		by, err := m.path(p.get(1, "attribute"))
		if err != nil {
			return nil, err
		}
		var best, bestKey any
		for i, e := range all {
			key, err := m.follow(e, by)
			if err != nil {
				return nil, err
			}
			if key, err = m.lowered(key, p.truth(0, "case_sensitive", false)); err != nil {
				return nil, err
			}
			if err := m.weigh(key); err != nil {
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
	by, err := m.path(p.get(0, "attribute"))
	if err != nil {
		return nil, err
	}
	total, ok := p.get(1, "start")
	if !ok {
		total = int64(0)
	}
	for _, e := range all {
		if err := m.spend(stepCost); err != nil {
			return nil, err
		}
		if e, err = m.follow(e, by); err != nil {
			return nil, err
		}
		if total, err = arithmetic("+", total, e); err != nil {
			return nil, err
		}
	}
	return total, nil
}
