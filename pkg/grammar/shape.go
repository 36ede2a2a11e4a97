package grammar

import (
	"regexp/syntax"
	"slices"
)

// shape is values that need no alternatives: what it says of a kind holds for values of that
// kind alone.
type shape struct {
	kinds    kinds
	object   objectShape
	array    arrayShape
	text     textShape
	number   numberShape
	literals []*value // if listed, the value is one of them
	listed   bool
	constant *value // while keywords are read
}

type objectShape struct {
	properties []property // in their order
	required   []string
	others     conjunction // what all other properties are; nil: anything
}

type property struct {
	name string
	is   conjunction
}

type arrayShape struct {
	first []conjunction // what each of the first items is
	items conjunction   // what all further ones are; nil: anything
	low   int
	high  int // unbounded: any number
}

type textShape struct {
	low      int // characters
	high     int // unbounded: any number
	patterns []pattern
}

type pattern struct {
	parsed *syntax.Regexp
	at     subschema
}

type numberShape struct {
	integer   bool
	low, high bound
}

// anyShape is all values.
func anyShape() shape {
	return shape{kinds: allKinds, array: arrayShape{high: unbounded}, text: textShape{high: unbounded}}
}

// both is the shape of what has two shapes; one without kinds if nothing has.
func (s *schemas) both(a, b *shape) (shape, error) {
	out := shape{kinds: a.kinds & b.kinds}
	if out.kinds == 0 {
		return out, nil
	}
	if err := s.working(copying(a, b)); err != nil {
		return out, err
	}
	out.object = a.object.and(&b.object)
	out.array = a.array.and(&b.array)
	out.text = textShape{max(a.text.low, b.text.low), min(a.text.high, b.text.high), slices.Concat(a.text.patterns, b.text.patterns)}
	out.number = numberShape{a.number.integer || b.number.integer, higher(a.number.low, b.number.low), lower(a.number.high, b.number.high)}
	switch {
	case a.listed && b.listed:
		out.listed = true
		for _, v := range a.literals {
			if err := s.working(len(b.literals) * v.size()); err != nil {
				return out, err
			}
			if slices.ContainsFunc(b.literals, func(w *value) bool { return equal(v, w) }) {
				out.literals = append(out.literals, v)
			}
		}
	case a.listed:
		out.listed, out.literals = true, a.literals
	case b.listed:
		out.listed, out.literals = true, b.literals
	}
	err := s.filter(&out)
	return out, err
}

// copying is the work to make the shape of what has two shapes. A schema or a name is a small part of
// an item or a property.
func copying(a, b *shape) int {
	n, m := len(a.object.properties), len(b.object.properties)
	first, second := len(a.array.first), len(b.array.first)
	small := schemasIn(a) + schemasIn(b) + len(a.object.required) + len(b.object.required) + len(a.text.patterns) + len(b.text.patterns) +
		n*m + n*len(b.object.others) + m*len(a.object.others) + first*len(b.array.items) + second*len(a.array.items)
	return n + m + first + second + small/8
}

// schemasIn is how many schemas a shape has for properties and items.
func schemasIn(a *shape) int {
	n := len(a.object.others) + len(a.array.items)
	for _, p := range a.object.properties {
		n += len(p.is)
	}
	for _, c := range a.array.first {
		n += len(c)
	}
	return n
}

// of is what a property of an object is.
func (o *objectShape) of(name string) conjunction {
	for _, p := range o.properties {
		if p.name == name {
			return p.is
		}
	}
	return o.others
}

func (o *objectShape) and(other *objectShape) objectShape {
	var out objectShape
	for _, p := range o.properties {
		out.properties = append(out.properties, property{p.name, slices.Concat(p.is, other.of(p.name))})
	}
	for _, p := range other.properties {
		if !slices.ContainsFunc(o.properties, func(q property) bool { return q.name == p.name }) {
			out.properties = append(out.properties, property{p.name, slices.Concat(o.others, p.is)})
		}
	}
	out.required = distinct(slices.Concat(o.required, other.required))
	out.others = slices.Concat(o.others, other.others)
	return out
}

// distinct drops names that come again.
func distinct(names []string) []string {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(name string) bool {
		again := seen[name]
		seen[name] = true
		return again
	})
}

// at is what an item of an array is.
func (a *arrayShape) at(i int) conjunction {
	if i < len(a.first) {
		return a.first[i]
	}
	return a.items
}

func (a *arrayShape) and(other *arrayShape) arrayShape {
	out := arrayShape{items: slices.Concat(a.items, other.items), low: max(a.low, other.low), high: min(a.high, other.high)}
	for i := range max(len(a.first), len(other.first)) {
		out.first = append(out.first, slices.Concat(a.at(i), other.at(i)))
	}
	return out
}

// maxDisjoint bounds how deep objects are looked into for what tells them apart.
const maxDisjoint = 4

// disjoint says whether it is certain that no value has a shape of a and one of b.
func (s *schemas) disjoint(a, b []shape, depth int) bool {
	for i := range a {
		for j := range b {
			if !s.apart(&a[i], &b[j], depth) {
				return false
			}
		}
	}
	return true
}

func (s *schemas) apart(a, b *shape, depth int) bool {
	if s.working(1) != nil {
		return false
	}
	both, err := s.both(a, b)
	if err != nil || depth > maxDisjoint {
		return false
	}
	if both.kinds == 0 || both.listed {
		return len(both.literals) == 0
	}
	if both.kinds&(kindNull|kindBoolean) != 0 {
		return false
	}
	if both.kinds&kindNumber != 0 {
		l, err := s.numbers(both.number.low, both.number.high, both.number.integer)
		if err != nil || l != nil {
			return false
		}
	}
	if both.kinds&kindString != 0 {
		l, err := s.textLexeme(&both.text)
		if err != nil || l != nil {
			return false
		}
	}
	if both.kinds&kindArray != 0 && both.array.high >= both.array.low {
		return false
	}
	return both.kinds&kindObject == 0 || s.impossible(&both.object, depth)
}

// impossible says whether it is certain that an object cannot have all that is required.
func (s *schemas) impossible(o *objectShape, depth int) bool {
	// Most are told apart without another look at what is in use, which takes long.
	for _, again := range []bool{false, true} {
		for _, name := range o.required {
			if s.unsatisfiable(o.of(name), depth+1, again) {
				return true
			}
		}
	}
	return false
}

// unsatisfiable says whether it is certain that no value obeys all of a conjunction. With again that may
// refer to schemas that are in use: it is for a value within another one. It is enough then to know
// what anyOf would allow in place of oneOf.
func (s *schemas) unsatisfiable(c conjunction, depth int, again bool) bool {
	if again {
		inUse, loosely := s.inUse, s.loosely
		s.inUse, s.loosely = make(map[*value]bool), true
		defer func() { s.inUse, s.loosely = inUse, loosely }()
	}
	shapes := []shape{anyShape()}
	for _, one := range c {
		further, err := s.expandOne(one)
		if err != nil {
			return false
		}
		if s.disjoint(shapes, further, depth) {
			return true
		}
		if shapes, err = s.meet(shapes, further); err != nil {
			return false
		}
	}
	return false
}
