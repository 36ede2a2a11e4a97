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
		return &function{"cycle", func(_ *machine, args []any, _ *Dict) (any, error) {
			if len(args) == 0 {
				return nil, errNoItems
			}
			return args[l.at%len(args)], nil
		}}, true
	case "changed":
		return &function{"changed", func(m *machine, args []any, _ *Dict) (any, error) {
			now := tuple(args...)
			if err := m.weigh(now); err != nil {
				return nil, err
			}
			if l.called && equal(l.last, now) {
				return false, nil
			}
			l.last, l.called = now, true
			return true, nil
		}}, true
	}
	return nil, false
}

// loop runs a for statement over a value.
func (m *machine) loop(n *forStatement, over any, s *scope, depth int) error {
	items, err := m.iterate(over)
	if err != nil {
		return err
	}
	if n.test != nil {
		var kept []any
		for _, v := range items {
			if err := m.spend(turnCost); err != nil {
				return err
			}
			inner := &scope{parent: s}
			if err := m.assign(n.target, v, inner); err != nil {
				return err
			}
			ok, err := m.eval(n.test, inner)
			if err != nil {
				return err
			}
			if truth(ok) {
				kept = append(kept, v)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		_, err := m.run(n.otherwise, &scope{parent: s})
		return err
	}
	l := &loop{items: items, depth: depth}
	if n.recursive {
		l.again = &function{"loop", func(m *machine, args []any, _ *Dict) (any, error) {
			if len(args) != 1 {
				return nil, errNoItems
			}
			printed, err := m.captured(func() error { return m.loop(n, args[0], s, depth+1) })
			return printed, err
		}}
	}
	for i, v := range items {
		l.at = i
		if err := m.spend(turnCost); err != nil {
			return err
		}
		inner := &scope{parent: s}
		inner.set("loop", l)
		if err := m.assign(n.target, v, inner); err != nil {
			return err
		}
		f, err := m.run(n.body, inner)
		if err != nil {
			return err
		}
		if f == flowBreak {
			break
		}
	}
	return nil
}
