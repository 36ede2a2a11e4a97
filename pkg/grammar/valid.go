package grammar

import "slices"

// filter drops the listed values that the rest of a shape does not have.
func (s *schemas) filter(of *shape) error {
	if !of.listed {
		return nil
	}
	rest := *of
	rest.listed, rest.literals = false, nil
	var kept []*value
	var kinds kinds
	for _, v := range of.literals {
		fits, err := s.fits(&rest, v)
		if err != nil {
			return err
		}
		if fits {
			kept, kinds = append(kept, v), kinds|v.kind
		}
	}
	of.literals, of.kinds = kept, kinds
	return nil
}

// valid says whether a value obeys all of a conjunction. That may refer to schemas that are in use:
// the value is within another one, so this ends.
func (s *schemas) valid(c conjunction, v *value) (bool, error) {
	inUse := s.inUse
	s.inUse = make(map[*value]bool)
	defer func() { s.inUse = inUse }()
	n, err := s.obeyed(c, v)
	return n == len(c), err
}

// obeyed is how many of some schemas a value obeys.
func (s *schemas) obeyed(of []subschema, v *value) (int, error) {
	n := 0
	for _, one := range of {
		obeys, err := s.obeys(one, v)
		if err != nil {
			return 0, err
		}
		if obeys {
			n++
		}
	}
	return n, nil
}

// obeys says whether a value obeys a schema. It reads all of it that is about the value itself, so
// that what is not supported is refused whatever the value is.
func (s *schemas) obeys(at subschema, v *value) (bool, error) {
	if err := s.use(at); err != nil {
		return false, err
	}
	defer delete(s.inUse, at.schema)
	own, err := s.own(at)
	if err != nil {
		return false, err
	}
	obeys, err := s.fits(&own, v)
	if err != nil {
		return false, err
	}
	for _, m := range at.schema.members {
		here := at.member(m.name, m.value)
		var list []subschema
		n := 0
		switch m.name {
		case "$ref":
			var target subschema
			if target, err = s.resolve(here); err == nil {
				list = []subschema{target}
				n, err = s.obeyed(list, v)
			}
		case "allOf", "anyOf", "oneOf":
			if list, err = here.list(); err == nil {
				n, err = s.obeyed(list, v)
			}
		default:
			continue
		}
		if err != nil {
			return false, err
		}
		switch m.name {
		case "anyOf":
			obeys = obeys && n > 0
		case "oneOf":
			// Where keywords are annotations, a value may obey more of them than it seems.
			obeys = obeys && (n == 1 || s.lenient && n > 0)
		default:
			obeys = obeys && n == len(list)
		}
	}
	return obeys, nil
}

func (s *schemas) fits(of *shape, v *value) (bool, error) {
	work := 1 + len(v.text)/textStep + len(v.items) + len(v.members)*(1+(len(of.object.required)+len(of.object.properties))/8)
	if of.listed {
		work += len(of.literals) * v.size()
	}
	if err := s.working(work); err != nil {
		return false, err
	}
	if of.kinds&v.kind == 0 || of.listed && !slices.ContainsFunc(of.literals, func(w *value) bool { return equal(v, w) }) {
		return false, nil
	}
	switch v.kind {
	case kindNumber:
		r := rational(v.text)
		if r == nil {
			return false, nil
		}
		n := of.number
		above := func(b bound, sign int) bool {
			c := 0
			if b.at != nil {
				c = r.Cmp(b.at) * sign
			}
			return b.at == nil || c > 0 || c == 0 && !b.exclusive
		}
		return (!n.integer || r.IsInt()) && above(n.low, 1) && above(n.high, -1), nil
	case kindString:
		l, err := s.textLexeme(&of.text)
		return l != nil && l.matches(quoted(v.text)), err
	case kindArray:
		if len(v.items) < of.array.low || len(v.items) > of.array.high {
			return false, nil
		}
		for i, item := range v.items {
			if fits, err := s.valid(of.array.at(i), item); !fits || err != nil {
				return false, err
			}
		}
	case kindObject:
		for _, name := range of.object.required {
			if v.get(name) == nil {
				return false, nil
			}
		}
		for _, m := range v.members {
			if fits, err := s.valid(of.object.of(m.name), m.value); !fits || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// matches says whether a lexeme matches a whole text.
func (l *lexeme) matches(text string) bool {
	at := l.first
	for i := 0; i < len(text) && at != nil; i++ {
		at = at.next(text[i])
	}
	return at != nil && at.final
}
