package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// path is the keys that lead to an attribute, as "function.name" or a number names
// it. Not given: it leads nowhere.
func (m *machine) path(by any, given bool) []any {
	s, ok := by.(string)
	switch {
	case !given || by == nil:
		return nil
	case !ok:
		return []any{by}
	}
	m.spend(len(s))
	m.spendTimes(strings.Count(s, ".")+1, valueCost)
	var keys []any
	for part := range strings.SplitSeq(s, ".") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			keys = append(keys, n)
		} else {
			keys = append(keys, part)
		}
	}
	return keys
}

// follow goes from a value along a path.
func (m *machine) follow(v any, path []any) any {
	for _, key := range path {
		m.spend(stepCost)
		_, isText := key.(string)
		d, isDict := v.(*Dict)
		if isDict && isText { // its elements, and not its methods
			var ok bool
			if v, ok = m.find(d, key); !ok {
				v = undefined{"a dict has no element " + shortText(key)}
			}
		} else {
			v = m.getItem(v, key)
		}
	}
	return v
}

// mapFilter is map(attribute=…), map(attribute=…, default=…) and map("filter", …).
func mapFilter(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	apply := func(e any) any { return fail("needs an attribute or a filter") }
	if by, ok := p.named.Get("attribute"); ok && len(p.args) == 0 {
		otherwise, hasDefault := p.named.Get("default")
		path := m.path(by, true)
		apply = func(e any) any {
			out := m.follow(e, path)
			if _, missing := out.(undefined); missing && hasDefault {
				return otherwise
			}
			return out
		}
	} else if len(p.args) > 0 {
		m.hash(p.args[0])
		name, ok := p.args[0].(string)
		if !ok || filterOf(name) == nil {
			return fail("no filter named %s", shortText(p.args[0]))
		}
		apply = func(e any) any { return m.applyFilter(name, e, p.args[1:], p.named) }
	}
	out := m.list(len(all))
	for i, e := range all {
		m.spend(stepCost)
		out[i] = apply(e)
	}
	return list(out)
}

// choose is select, reject, selectattr and rejectattr.
func choose(byAttribute, keep bool) filter {
	return func(m *machine, v any, p parameters) any {
		all := m.iterate(v)
		args := p.args
		var by []any
		if byAttribute {
			if len(args) == 0 {
				return fail("needs an attribute")
			}
			by = m.path(args[0], true)
			args = args[1:]
		}
		passes := truth
		if len(args) > 0 {
			m.hash(args[0])
			name, _ := args[0].(string)
			t := testOf(name)
			if t == nil {
				return fail("no test named %s", shortText(args[0]))
			}
			passes = func(v any) bool { return t(m, v, args[1:]) }
		}
		out := []any{}
		for _, e := range all {
			m.spend(stepCost + elementCost)
			if passes(m.follow(e, by)) == keep {
				out = append(out, e)
			}
		}
		return list(out)
	}
}

// lowered is a key that does not tell cases apart, if it should not.
func (m *machine) lowered(v any, caseSensitive bool) any {
	s, ok := v.(string)
	if !ok || caseSensitive {
		return v
	}
	m.spendTimes(len(s), runeCost)
	return strings.ToLower(s)
}

// sorted sorts by a key, stably.
func (m *machine) sorted(all []any, key func(any) any, backwards, caseSensitive bool) any {
	type keyed struct {
		key, value any
		cost       int
	}
	m.spendTimes(len(all), valueCost)
	pairs := make([]keyed, len(all))
	for i, v := range all {
		k := m.lowered(key(v), caseSensitive)
		pairs[i] = keyed{k, v, m.weight(k)}
	}
	slices.SortStableFunc(pairs, func(a, b keyed) int {
		m.spend(stepCost + min(a.cost, b.cost))
		c := compare(a.key, b.key)
		if backwards {
			return -c
		}
		return c
	})
	out := m.list(len(pairs))
	for i, p := range pairs {
		out[i] = p.value
	}
	return list(out)
}

func sortFilter(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	by := m.path(p.get(2, "attribute"))
	return m.sorted(all, func(v any) any { return m.follow(v, by) }, p.truth(0, "reverse", false), p.truth(1, "case_sensitive", false))
}

func unique(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	by := m.path(p.get(1, "attribute"))
	seen, out := NewDict(), []any{}
	for _, e := range all {
		key := m.lowered(m.follow(e, by), p.truth(0, "case_sensitive", false))
		if !hashable(key) {
			return fail("a %s cannot be compared with others here", typeName(key))
		}
		if _, known := m.find(seen, key); !known {
			m.spend(entryCost)
			seen.Set(key, true)
			out = append(out, e)
		}
	}
	return list(out)
}

// extreme is max and min.
func extreme(sign int) filter {
	return func(m *machine, v any, p parameters) any {
		all := m.iterate(v)
		if len(all) == 0 {
			return undefined{"there is no aggregated item, the sequence is empty"}
		}
		by := m.path(p.get(1, "attribute"))
		var best, bestKey any
		for i, e := range all {
			key := m.lowered(m.follow(e, by), p.truth(0, "case_sensitive", false))
			m.weigh(key)
			if i == 0 || compare(key, bestKey)*sign > 0 {
				best, bestKey = e, key
			}
		}
		return best
	}
}

func sum(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	by := m.path(p.get(0, "attribute"))
	total, ok := p.get(1, "start")
	if !ok {
		total = int64(0)
	}
	for _, e := range all {
		m.spend(stepCost)
		total = arithmetic("+", total, m.follow(e, by))
	}
	return total
}
