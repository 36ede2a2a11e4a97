package jinja

import "slices"

// indexedNames is how many variables a scope has before it looks them up by hash.
const indexedNames = 16

// scope is the variables of a block, which sees those around it.
type scope struct {
	names  []string
	values []any
	index  map[string]int // nil: they are few
	parent *scope
}

func (s *scope) find(name string) int {
	if s.index == nil {
		return slices.Index(s.names, name)
	}
	if i, ok := s.index[name]; ok {
		return i
	}
	return -1
}

func (s *scope) set(name string, value any) {
	if i := s.find(name); i >= 0 {
		s.values[i] = value
		return
	}
	s.names, s.values = append(s.names, name), append(s.values, value)
	switch {
	case s.index != nil:
		s.index[name] = len(s.names) - 1
	case len(s.names) > indexedNames:
		s.index = make(map[string]int)
		for i, n := range s.names {
			s.index[n] = i
		}
	}
}

// setIn gives a variable of a scope a value.
func (m *machine) setIn(s *scope, name string, value any) {
	m.spend(valueCost + len(name))
	s.set(name, value)
}

// get looks a variable up, in a scope and those around it.
func (m *machine) get(s *scope, name string) (any, bool) {
	for ; s != nil; s = s.parent {
		m.spend(scopeCost)
		if i := s.find(name); i >= 0 {
			return s.values[i], true
		}
	}
	return nil, false
}
