package grammar

import (
	"math"
	"math/big"
)

// types reads "type".
func (out *shape) types(at subschema) error {
	names := []*value{at.schema}
	if at.schema.kind == kindArray {
		names = at.schema.items
	}
	out.kinds = 0
	integer, number := false, false
	for _, name := range names {
		switch {
		case name.kind != kindString:
			return at.errorf("has to be a name or an array of names")
		case name.text == "integer":
			integer = true
		case name.text == "number":
			number = true
		case kindNames[name.text] == 0:
			return at.errorf("%q is no type", name.text)
		default:
			out.kinds |= kindNames[name.text]
		}
	}
	if integer || number {
		out.kinds |= kindNumber
		out.number.integer = out.number.integer || !number
	}
	if out.kinds == 0 {
		return at.errorf("names no type")
	}
	return nil
}

var kindNames = map[string]kinds{
	"null": kindNull, "boolean": kindBoolean, "string": kindString, "array": kindArray, "object": kindObject,
}

func (out *shape) objectKeyword(name string, at subschema) error {
	switch name {
	case "properties":
		if at.schema.kind != kindObject {
			return at.errorf("has to be an object")
		}
		for _, m := range at.schema.members {
			out.object.properties = append(out.object.properties, property{m.name, conjunction{at.member(m.name, m.value)}})
		}
	case "required":
		if at.schema.kind != kindArray {
			return at.errorf("has to be an array of names")
		}
		for _, item := range at.schema.items {
			if item.kind != kindString {
				return at.errorf("has to be an array of names")
			}
			out.object.required = append(out.object.required, item.text)
		}
		out.object.required = distinct(out.object.required)
	default:
		out.object.others = conjunction{at}
	}
	return nil
}

// maxItems bounds the items of an array that are counted.
const maxItems = 1024

func (s *schemas) arrayKeyword(out *shape, name string, at subschema) error {
	switch name {
	case "items":
		if at.schema.kind == kindArray {
			return s.unenforced(name, at.errorf("as an array is of earlier drafts: use prefixItems"))
		}
		out.array.items = conjunction{at}
	case "prefixItems":
		if at.schema.kind != kindArray {
			return at.errorf("has to be an array of schemas")
		}
		if len(at.schema.items) > maxItems {
			return at.errorf("has more than %d schemas", maxItems)
		}
		for i, item := range at.schema.items {
			out.array.first = append(out.array.first, conjunction{at.item(i, item)})
		}
	default:
		n, err := count(at)
		switch {
		case err != nil:
			return err
		case n > maxItems:
			return s.unenforced(name, at.errorf("is more than %d: leave it out, or lower it", maxItems))
		case name == "minItems":
			out.array.low = n
		default:
			out.array.high = n
		}
	}
	return nil
}

func (s *schemas) stringKeyword(out *shape, name string, at subschema) (err error) {
	switch name {
	case "minLength":
		out.text.low, err = count(at)
	case "maxLength":
		out.text.high, err = count(at)
	default:
		if at.schema.kind != kindString {
			return at.errorf("has to be a string")
		}
		text := at.schema.text
		if name == "format" {
			if text = formats[at.schema.text]; text == "" {
				return s.unenforced("format="+at.schema.text, at.errorf("%q is not supported: leave it out, or use a pattern", at.schema.text))
			}
		}
		parsed := s.patterns[at.schema]
		if parsed == nil {
			if parsed, err = parsePattern(text); err != nil {
				return s.unenforced(name, at.errorf("%v", err))
			}
			s.patterns[at.schema] = parsed
		}
		out.text.patterns = append(out.text.patterns, pattern{parsed, at})
	}
	return err
}

func (s *schemas) numberKeyword(out *shape, name string, at subschema) error {
	switch {
	case at.schema.kind == kindBoolean && (name == "exclusiveMinimum" || name == "exclusiveMaximum"):
		// In JSON Schema up to draft 4, and OpenAPI 3.0, it says of the other bound that it is exclusive.
		if s.lenient && at.schema.text == "false" {
			return nil
		}
		return s.unenforced(name, at.errorf("has to be a number"))
	case at.schema.kind != kindNumber:
		return at.errorf("has to be a number")
	}
	r := rational(at.schema.text)
	if r == nil {
		return s.unenforced(name, at.errorf("%s is too large or too small", at.schema.text))
	}
	n := &out.number
	switch name {
	case "minimum":
		n.low = higher(n.low, bound{at: r, keyword: at})
	case "exclusiveMinimum":
		n.low = higher(n.low, bound{at: r, exclusive: true, keyword: at})
	case "maximum":
		n.high = lower(n.high, bound{at: r, keyword: at})
	case "exclusiveMaximum":
		n.high = lower(n.high, bound{at: r, exclusive: true, keyword: at})
	default:
		if r.Sign() <= 0 {
			return at.errorf("has to be more than 0")
		}
		if r.Cmp(big.NewRat(1, 1)) != 0 {
			return s.unenforced(name, at.errorf("is supported only as 1: leave it out"))
		}
		n.integer = true
	}
	return nil
}

// count reads a number of something. One that no output reaches is unbounded.
func count(at subschema) (int, error) {
	if at.schema.kind == kindNumber {
		if r := rational(at.schema.text); r != nil && r.IsInt() && r.Sign() >= 0 {
			if n := r.Num(); n.IsInt64() && n.Int64() < math.MaxInt32 {
				return int(n.Int64()), nil
			}
			return unbounded, nil
		}
	}
	return 0, at.errorf("has to be a whole number that is not negative")
}
