package grammar

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// subschema is a schema and where it stands.
type subschema struct {
	schema *value
	at     *pointer // nil: at the top
}

// pointer is where a schema stands: a JSON pointer (RFC 6901). Its text is made for errors alone:
// many schemas may stand below a long name.
type pointer struct {
	in   *pointer
	name string
}

// String is empty at the top.
func (p *pointer) String() string {
	var names []string
	for ; p != nil; p = p.in {
		names = append(names, "/"+strings.ReplaceAll(strings.ReplaceAll(p.name, "~", "~0"), "/", "~1"))
	}
	slices.Reverse(names)
	return strings.Join(names, "")
}

// member is what stands in a schema under a name.
func (s subschema) member(name string, is *value) subschema {
	return subschema{is, &pointer{s.at, name}}
}

// item is what stands in an array of schemas.
func (s subschema) item(i int, is *value) subschema {
	return s.member(strconv.Itoa(i), is)
}

// list is an array of schemas.
func (s subschema) list() ([]subschema, error) {
	if len(s.schema.items) == 0 {
		return nil, s.errorf("has to be an array of schemas")
	}
	out := make([]subschema, len(s.schema.items))
	for i, item := range s.schema.items {
		out[i] = s.item(i, item)
	}
	return out, nil
}

// conjunction is schemas that all hold for one value. None: every value.
type conjunction []subschema

// key names a conjunction: equal ones have equal keys.
func (c conjunction) key() string {
	schemas := make([]string, len(c))
	for i, s := range c {
		schemas[i] = fmt.Sprintf("%p", s.schema)
	}
	slices.Sort(schemas)
	return strings.Join(slices.Compact(schemas), " ")
}

// errorf is a problem and where it is.
func (s subschema) errorf(format string, args ...any) error {
	at := s.at.String()
	if at == "" {
		at = "the schema"
	}
	return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
}

// use begins to read a schema, which is in use until it is deleted there.
func (s *schemas) use(at subschema) error {
	if s.inUse[at.schema] {
		return at.errorf("refers to itself before anything else")
	}
	s.inUse[at.schema] = true
	return nil
}

// anything is the schema of all values.
var anything = &value{kind: kindBoolean, text: "true"}

// resolve is what a $ref refers to.
func (s *schemas) resolve(at subschema) (subschema, error) {
	if at.schema.kind != kindString {
		return subschema{}, at.errorf("has to be a string")
	}
	ref := at.schema.text
	if ref != "#" && !strings.HasPrefix(ref, "#/") {
		err := s.unenforced("$ref", at.errorf("%q is not supported: only references within the schema are, such as #/$defs/name", ref))
		return subschema{anything, at.at}, err
	}
	pointer, err := url.PathUnescape(strings.TrimPrefix(ref, "#"))
	if err != nil {
		return subschema{}, at.errorf("%q is no reference", ref)
	}
	found := subschema{schema: s.root}
	for _, part := range strings.Split(pointer, "/")[1:] {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		var next *value
		switch in := found.schema; in.kind {
		case kindObject:
			next = in.get(part)
		case kindArray:
			if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(in.items) {
				next = in.items[i]
			}
		}
		if next == nil {
			return subschema{}, at.errorf("%q leads nowhere", ref)
		}
		found = found.member(part, next)
	}
	return found, nil
}
