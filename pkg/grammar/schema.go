package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
)

// schemas reads a JSON Schema.
type schemas struct {
	*program
	root     *value
	patterns map[*value]*syntax.Regexp // those that were read
	rules    map[string]int32          // by conjunction.key
	texts    map[string]*lexeme        // of strings with patterns, by the lengths and the schemas of those
	depth    int                       // of values that are not rules, in one another
	inUse    map[*value]bool           // schemas that are being read
	// disjoined are what oneOf has where it is known that no value can match two of it.
	disjoined map[*value]bool
	loosely   bool // oneOf is read as anyOf
	lenient   bool // what cannot be enforced is read as an annotation
	work      int  // schemas that were read, and pairs that were compared
}

// schema makes the structure of what a schema describes.
func (p *program) schema(text string) (int32, error) { return p.schemaBefore(text, false, end) }

// schemaBefore goes on with what a schema describes before next. lenient: keywords that are unknown
// or cannot be enforced are annotations, and p.ignored has them.
func (p *program) schemaBefore(text string, lenient bool, next int32) (int32, error) {
	if len(text) > MaxSourceBytes {
		return 0, fmt.Errorf("has %d bytes, more than %d", len(text), MaxSourceBytes)
	}
	root, err := parseValue(text)
	if err != nil {
		return 0, err
	}
	s := &schemas{
		program: p, root: root, patterns: make(map[*value]*syntax.Regexp), rules: make(map[string]int32), texts: make(map[string]*lexeme),
		inUse: make(map[*value]bool), disjoined: make(map[*value]bool), lenient: lenient,
	}
	return s.value(conjunction{{root, nil}}, next)
}

// unenforced is the error for a keyword that outputs cannot be held to; nil if such keywords are
// annotations.
func (s *schemas) unenforced(keyword string, err error) error {
	if !s.lenient {
		return err
	}
	s.ignore(keyword)
	return nil
}

// maxIgnored is how many keywords a grammar names that it does not enforce, with at most
// maxIgnoredBytes each.
const (
	maxIgnored      = 32
	maxIgnoredBytes = 64
)

func (p *program) ignore(keyword string) {
	if len(keyword) > maxIgnoredBytes {
		keyword = strings.ToValidUTF8(keyword[:maxIgnoredBytes], "") + "…"
	}
	at, is := slices.BinarySearch(p.ignored, keyword)
	if !is && len(p.ignored) < maxIgnored {
		p.ignored = slices.Insert(p.ignored, at, keyword)
	}
}

// annotations say nothing about which values are valid.
var annotations = []string{
	"$schema", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "example",
	"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding",
}

// maxShapes bounds the alternatives of one value.
const maxShapes = 256

// expand makes shapes of a conjunction: what is valid is of one of them.
func (s *schemas) expand(c conjunction) ([]shape, error) {
	shapes := []shape{anyShape()}
	for _, one := range c {
		further, err := s.expandOne(one)
		if err != nil {
			return nil, err
		}
		if shapes, err = s.meet(shapes, further); err != nil {
			return nil, one.errorf("%v", err)
		}
	}
	return shapes, nil
}

// maxWork bounds what it takes to read a schema.
const maxWork = 1 << 18

func (s *schemas) working(n int) error {
	if s.work += n; s.work > maxWork {
		return errors.New("the schema takes too long to read: leave alternatives out")
	}
	return s.tick(n)
}

// meet is the shapes of what has a shape of a and one of b.
func (s *schemas) meet(a, b []shape) ([]shape, error) {
	var out []shape
	for i := range a {
		for j := range b {
			if err := s.working(1); err != nil {
				return nil, err
			}
			both, err := s.both(&a[i], &b[j])
			if err != nil {
				return nil, err
			}
			if both.kinds == 0 {
				continue
			}
			if out = append(out, both); len(out) > maxShapes {
				return nil, fmt.Errorf("has more than %d alternatives together", maxShapes)
			}
		}
	}
	return out, nil
}

func (s *schemas) expandOne(at subschema) ([]shape, error) {
	if err := s.use(at); err != nil {
		return nil, err
	}
	defer delete(s.inUse, at.schema)
	own, err := s.own(at)
	if err == nil {
		err = s.filter(&own)
	}
	if err != nil {
		return nil, err
	}
	shapes := []shape{own}
	for _, m := range at.schema.members {
		var further []shape
		here := at.member(m.name, m.value)
		switch m.name {
		case "$ref":
			var target subschema
			if target, err = s.resolve(here); err == nil {
				further, err = s.expandOne(target)
			}
		case "allOf":
			var all conjunction
			if all, err = here.list(); err == nil {
				further, err = s.expand(all)
			}
		case "anyOf", "oneOf":
			further, err = s.alternatives(here, m.name == "oneOf")
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		if shapes, err = s.meet(shapes, further); err != nil {
			return nil, here.errorf("%v", err)
		}
	}
	return shapes, nil
}

func (s *schemas) alternatives(at subschema, one bool) ([]shape, error) {
	list, err := at.list()
	if err != nil {
		return nil, err
	}
	var all [][]shape
	total := 0
	for _, item := range list {
		further, err := s.expandOne(item)
		if err != nil {
			return nil, err
		}
		if total += len(further); total > maxShapes {
			return nil, at.errorf("has more than %d alternatives together", maxShapes)
		}
		all = append(all, further)
	}
	if one && !s.loosely && !s.disjoined[at.schema] {
		for i := range all {
			for j := range i {
				if s.disjoint(all[i], all[j], 0) {
					continue
				}
				if err := s.unenforced("oneOf", at.errorf("is supported only where no value can match two of the schemas, as those at %d and %d may: use anyOf, or give them properties with different constants", j, i)); err != nil {
					return nil, err
				}
				s.disjoined[at.schema] = true
				return slices.Concat(all...), nil
			}
		}
		s.disjoined[at.schema] = true
	}
	return slices.Concat(all...), nil
}

// own is the shape that a schema's own keywords describe. Of the values that it lists, some may not
// have the rest of it.
func (s *schemas) own(at subschema) (shape, error) {
	out := anyShape()
	if err := s.working(1 + len(at.schema.members) + len(at.schema.items)); err != nil {
		return out, err
	}
	switch at.schema.kind {
	case kindBoolean:
		if at.schema.text == "false" {
			out.kinds = 0
		}
		return out, nil
	case kindObject:
	default:
		return out, at.errorf("a schema has to be an object, true or false")
	}
	for _, m := range at.schema.members {
		here := at.member(m.name, m.value)
		err := s.working(len(m.value.members) + len(m.value.items))
		if err != nil {
			return out, err
		}
		switch m.name {
		case "$ref", "allOf", "anyOf", "oneOf":
		case "type":
			err = out.types(here)
		case "enum":
			if m.value.kind != kindArray {
				return out, here.errorf("has to be an array")
			}
			out.literals, out.listed = slices.Clone(m.value.items), true
		case "const":
			out.constant = here.schema
		case "properties", "required", "additionalProperties":
			if further := at.schema.get("patternProperties"); s.lenient && m.name == "additionalProperties" && further != nil && len(further.members) > 0 {
				s.ignore(m.name) // it leaves out what patternProperties has, which is not known
				continue
			}
			err = out.objectKeyword(m.name, here)
		case "items", "prefixItems", "minItems", "maxItems":
			err = s.arrayKeyword(&out, m.name, here)
		case "pattern", "format", "minLength", "maxLength":
			err = s.stringKeyword(&out, m.name, here)
		case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
			err = s.numberKeyword(&out, m.name, here)
		case "$id":
			if at.at != nil {
				err = s.unenforced(m.name, here.errorf("is supported at the top only"))
			}
		case "uniqueItems":
			if m.value.kind != kindBoolean {
				err = here.errorf("has to be true or false")
			} else if m.value.text == "true" {
				err = s.unenforced(m.name, here.errorf("true is not supported: leave it out"))
			}
		case "minProperties":
			var n int
			if n, err = count(here); err == nil && n > 0 {
				err = s.unenforced(m.name, here.errorf("is not supported: list the properties that are required"))
			}
		default:
			if !slices.Contains(annotations, m.name) {
				err = s.unenforced(m.name, here.errorf("the keyword is not supported: leave it out"))
			}
		}
		if err != nil {
			return out, err
		}
	}
	if out.constant != nil {
		list := []*value{out.constant}
		if out.listed {
			if err := s.working(len(out.literals) * out.constant.size()); err != nil {
				return out, err
			}
			list = slices.DeleteFunc(slices.Clone(out.literals), func(v *value) bool { return !equal(v, out.constant) })
		}
		out.literals, out.listed, out.constant = list, true, nil
	}
	return out, nil
}

var errTooDeep = errors.New("the schema has too many schemas in one another")
