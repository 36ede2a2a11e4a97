package grammar

import (
	"fmt"
	"slices"
)

// value goes on with a value that a conjunction of schemas describes before next.
func (s *schemas) value(c conjunction, next int32) (int32, error) {
	if len(s.nodes) > maxNodes {
		return 0, errTooManyNodes
	}
	if len(c) == 0 {
		return s.call(s.anyJSON().value, next), nil
	}
	for _, one := range c {
		if refers(one.schema) {
			return s.shared(c, next)
		}
	}
	if s.depth++; s.depth > 2*maxValueDepth {
		return 0, errTooDeep
	}
	defer func() { s.depth-- }()
	return s.values(c, next)
}

// refers says whether what a schema is for a value depends on a reference.
func refers(schema *value) bool {
	for _, m := range schema.members {
		switch m.name {
		case "$ref":
			return true
		case "allOf", "anyOf", "oneOf":
			if slices.ContainsFunc(m.value.items, refers) {
				return true
			}
		}
	}
	return false
}

// shared is value by a rule, which others that need the same use too.
func (s *schemas) shared(c conjunction, next int32) (int32, error) {
	key := c.key()
	rule, made := s.rules[key]
	if !made {
		rule = s.rule()
		s.rules[key] = rule
		first, err := s.values(c, end)
		if err != nil {
			return 0, err
		}
		s.program.rules[rule] = first
	}
	return s.call(rule, next), nil
}

func (s *schemas) values(c conjunction, next int32) (int32, error) {
	shapes, err := s.expand(c)
	if err != nil {
		return 0, err
	}
	var ways []int32
	for i := range shapes {
		way, err := s.shape(&shapes[i], next)
		if err != nil {
			return 0, err
		}
		ways = append(ways, way)
	}
	return s.split(ways...), nil
}

// shape goes on with a value of a shape.
func (s *schemas) shape(of *shape, next int32) (int32, error) {
	if of.listed {
		return s.listed(of.literals, next)
	}
	var ways []int32
	add := func(way int32, err error) error {
		ways = append(ways, way)
		return err
	}
	var err error
	switch of.kinds & (kindNull | kindBoolean) {
	case kindNull | kindBoolean:
		ways = append(ways, s.lexeme(s.expressionOf("null|true|false"), next))
	case kindNull:
		ways = append(ways, s.lexeme(s.expressionOf("null"), next))
	case kindBoolean:
		ways = append(ways, s.lexeme(s.expressionOf("true|false"), next))
	}
	for _, k := range []struct {
		kind kinds
		make func() (int32, error)
	}{
		{kindNumber, func() (int32, error) {
			l, err := s.numberLexeme(&of.number)
			return s.lexeme(l, next), err
		}},
		{kindString, func() (int32, error) {
			l, err := s.textLexeme(&of.text)
			return s.lexeme(l, next), err
		}},
		{kindArray, func() (int32, error) { return s.array(&of.array, next) }},
		{kindObject, func() (int32, error) { return s.object(&of.object, next) }},
	} {
		if err == nil && of.kinds&k.kind != 0 {
			err = add(k.make())
		}
	}
	return s.split(ways...), err
}

// listed goes on with one of some values.
func (s *schemas) listed(values []*value, next int32) (int32, error) {
	var ways []int32
	var texts []string
	for _, v := range values {
		var way int32
		var err error
		switch v.kind {
		case kindArray:
			way, err = s.literalList(next, '[', ']', len(v.items), func(i int, next int32) (int32, error) {
				return s.listed(v.items[i:i+1], next)
			})
		case kindObject:
			way, err = s.literalList(next, '{', '}', len(v.members), func(i int, next int32) (int32, error) {
				value, err := s.listed([]*value{v.members[i].value}, next)
				if err != nil {
					return 0, err
				}
				return s.key(v.members[i].name, value)
			})
		default:
			texts = append(texts, v.spellings()...)
			continue
		}
		if err != nil {
			return 0, err
		}
		ways = append(ways, way)
	}
	if len(texts) > 0 {
		l, err := s.oneOf(texts)
		if err != nil {
			return 0, err
		}
		ways = append(ways, s.lexeme(l, next))
	}
	return s.split(ways...), nil
}

func (s *schemas) literalList(next int32, open, shut byte, n int, item func(i int, next int32) (int32, error)) (int32, error) {
	at := s.lexeme(s.expressionOf(space+`\`+string(shut)), next)
	var err error
	for i := n - 1; i >= 0; i-- {
		if at, err = item(i, at); err != nil {
			return 0, err
		}
		if i > 0 {
			at = s.lexeme(s.expressionOf(","+space), at)
		} else {
			at = s.lexeme(s.expressionOf(space), at)
		}
	}
	return s.lexeme(s.expressionOf(`\`+string(open)), at), nil
}

// key goes on with a name and a colon before value.
func (s *schemas) key(name string, value int32) (int32, error) {
	if value == nowhere {
		return nowhere, nil
	}
	return s.text(quoted(name), s.lexeme(s.expressionOf(":"+space), value))
}

// array goes on with an array.
func (s *schemas) array(of *arrayShape, next int32) (int32, error) {
	if of.high < of.low {
		return nowhere, nil
	}
	closes := s.lexeme(s.expressionOf(space+`\]`), next)
	counted := max(of.low, len(of.first))
	if of.high != unbounded {
		counted = of.high
	}
	item := func(i int, next int32) (int32, error) {
		if c := of.at(i); i < len(of.first) || counted <= len(of.first)+1 {
			return s.value(c, next)
		} else if len(c) == 0 {
			return s.call(s.anyJSON().value, next), nil
		} else {
			return s.shared(c, next) // there are several of it
		}
	}
	comma := s.expressionOf("," + space)
	// after is where i items have come.
	after := closes
	if of.high == unbounded {
		after = s.loop()
		more, err := item(counted, after)
		if err != nil {
			return 0, err
		}
		s.nodes[after].ways = []int32{s.lexeme(comma, more)}
		if counted >= of.low {
			s.nodes[after].ways = append(s.nodes[after].ways, closes)
		}
		if counted == 0 { // the first one has no comma
			return s.lexeme(s.expressionOf(`\[`), s.split(s.lexeme(s.expressionOf(space), more), closes)), nil
		}
	}
	for i := counted - 1; i >= 0; i-- {
		more, err := item(i, after)
		if err != nil {
			return 0, err
		}
		between := comma
		if i == 0 {
			between = s.expressionOf(space)
		}
		after = s.lexeme(between, more)
		if i >= of.low {
			after = s.split(after, closes)
		}
	}
	return s.lexeme(s.expressionOf(`\[`), after), nil
}

// object goes on with an object: its properties in their order, then others.
func (s *schemas) object(of *objectShape, next int32) (int32, error) {
	properties := slices.Clone(of.properties)
	described, required := make(map[string]bool), make(map[string]bool)
	for _, p := range properties {
		described[p.name] = true
	}
	for _, name := range of.required {
		if required[name] = true; !described[name] {
			properties = append(properties, property{name, of.others})
		}
	}
	closes := s.lexeme(s.expressionOf(space+`\}`), next)
	comma, colon := s.expressionOf(","+space), s.expressionOf(":"+space)

	// more is the properties from here on, of which one has to come, after the comma; done is
	// where one has come.
	others, err := s.others(properties)
	if err != nil {
		return 0, err
	}
	done := s.loop()
	value, err := s.value(of.others, done)
	if err != nil {
		return 0, err
	}
	more := s.lexeme(others, s.lexeme(colon, value))
	s.nodes[done].ways = []int32{closes}
	if more != nowhere {
		s.nodes[done].ways = append(s.nodes[done].ways, s.lexeme(comma, more))
	}
	empty := true // nothing of what is left is required
	for i := len(properties) - 1; i >= 0; i-- {
		p := properties[i]
		value, err := s.value(p.is, done)
		if err != nil {
			return 0, err
		}
		one, err := s.key(p.name, value)
		if err != nil {
			return 0, err
		}
		if required[p.name] {
			more, empty = one, false
		} else {
			more = s.split(one, more)
		}
		if i > 0 {
			ways := []int32{s.lexeme(comma, more)}
			if empty {
				ways = append(ways, closes)
			}
			done = s.split(ways...)
		}
	}
	first := s.lexeme(s.expressionOf(space), more)
	if empty {
		first = s.split(first, closes)
	}
	return s.lexeme(s.expressionOf(`\{`), first), nil
}

// others is the names of an object's other properties.
func (s *schemas) others(but []property) (*lexeme, error) {
	if len(but) == 0 {
		return s.string(), nil
	}
	var names []string
	for _, p := range but {
		names = append(names, quoted(p.name))
	}
	return s.except(names)
}

func (s *schemas) textLexeme(of *textShape) (*lexeme, error) {
	if of.high < of.low || of.low == unbounded {
		return nil, nil
	}
	if len(of.patterns) == 0 {
		return s.jsonString(of.low, of.high), nil
	}
	key := fmt.Sprint(of.low, of.high)
	for _, p := range of.patterns {
		key += fmt.Sprintf(" %p", p.at.schema)
	}
	if made, is := s.texts[key]; is {
		return made, nil
	}
	out, err := s.patternsLexeme(of.patterns)
	switch {
	case err != nil:
		return nil, err
	case out == s.string():
		out = s.jsonString(of.low, of.high)
	case out != nil && (of.low > 0 || of.high < unbounded):
		bounded, err := s.lexemes.both(out, s.jsonString(of.low, of.high))
		if err == nil {
			out = bounded
			break
		}
		keyword := "maxLength"
		if of.high == unbounded {
			keyword = "minLength"
		}
		if err := s.unenforced(keyword, of.patterns[0].at.errorf("%v", err)); err != nil {
			return nil, err
		}
	}
	s.texts[key] = out
	return out, nil
}

// patternsLexeme is the strings in which all of some patterns are found: s.string() if none of these
// can be enforced; nil: there are none.
func (s *schemas) patternsLexeme(patterns []pattern) (*lexeme, error) {
	out := s.string()
	for _, p := range patterns {
		one, err := s.search(p.parsed)
		if err == nil && one != nil && out != s.string() {
			one, err = s.lexemes.both(out, one)
		}
		if err != nil {
			if err := s.unenforced(p.at.at.name, p.at.errorf("%v", err)); err != nil {
				return nil, err
			}
			continue
		}
		if out = one; out == nil {
			return nil, nil
		}
	}
	return out, nil
}
