package jinja

// loop is the variable of that name.
type loop struct {
	items  []any
	at     int
	depth  int
	again  *function // of a recursive loop
	last   any       // of changed
	called bool
}

func (l *loop) attribute(name string) (any, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.at + 1), true
	case "index0":
		return int64(l.at), true
	case "revindex":
		return int64(n - l.at), true
	case "revindex0":
		return int64(n - l.at - 1), true
	case "first":
		return l.at == 0, true
	case "last":
		return l.at == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1], true
		}
		return undefined{"there is no previous item"}, true
	case "nextitem":
		if l.at < n-1 {
			return l.items[l.at+1], true
		}
		return undefined{"there is no next item"}, true
	case "cycle":
		return &function{"cycle", func(_ *machine, args []any, _ *Dict) any {
			if len(args) == 0 {
				return failWith(errNoItems)
			}
			return args[l.at%len(args)]
		}}, true
	case "changed":
		return &function{"changed", func(m *machine, args []any, _ *Dict) any {
			now := tuple(args...)
			m.weigh(now)
			if l.called && equal(l.last, now) {
				return false
			}
			l.last, l.called = now, true
			return true
		}}, true
	}
	return nil, false
}

// loop runs a for statement over a value.
func (m *machine) loop(n *forStatement, over any, s *scope, depth int) {
	items := m.iterate(over)
	if n.test != nil {
		var kept []any
		for _, v := range items {
			m.spend(turnCost)
			inner := &scope{parent: s}
			m.assign(n.target, v, inner)
			if truth(m.eval(n.test, inner)) {
				kept = append(kept, v)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		m.run(n.otherwise, &scope{parent: s})
		return
	}
	l := &loop{items: items, depth: depth}
	if n.recursive {
		l.again = &function{"loop", func(m *machine, args []any, _ *Dict) any {
			if len(args) != 1 {
				return failWith(errNoItems)
			}
			return m.captured(func() { m.loop(n, args[0], s, depth+1) })
		}}
	}
	for i, v := range items {
		l.at = i
		m.spend(turnCost)
		inner := &scope{parent: s}
		inner.set("loop", l)
		m.assign(n.target, v, inner)
		if m.run(n.body, inner) == flowBreak {
			break
		}
	}
}
