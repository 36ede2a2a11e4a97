package grammar

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"unicode/utf8"
)

// value is JSON with the members of objects in their order.
type value struct {
	kind    kinds
	text    string // of a string; of a number, true and false as they are written
	items   []*value
	members []member
}

type member struct {
	name  string
	value *value
}

// get is a member of an object; nil: it has none of this name.
func (v *value) get(name string) *value {
	for i := range v.members {
		if v.members[i].name == name {
			return v.members[i].value
		}
	}
	return nil
}

// kinds is a set of JSON's types; an integer is a number.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBoolean
	kindNumber
	kindString
	kindArray
	kindObject

	allKinds = kindNull | kindBoolean | kindNumber | kindString | kindArray | kindObject
)

// maxValueDepth bounds arrays and objects in one another.
const maxValueDepth = 64

// maxNumberBytes bounds the text of a number: to compare long ones takes the square of their length.
const maxNumberBytes = 1024

// parseValue reads JSON. A member that comes twice is refused.
func parseValue(text string) (*value, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("is not valid UTF-8")
	}
	d := stdjson.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, fmt.Errorf("is not valid JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("is not valid JSON: something follows the first value")
	}
	return v, nil
}

func readValue(d *stdjson.Decoder, depth int) (*value, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("more than %d arrays and objects in one another", maxValueDepth)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case nil:
		return &value{kind: kindNull, text: "null"}, nil
	case bool:
		return &value{kind: kindBoolean, text: fmt.Sprint(t)}, nil
	case stdjson.Number:
		if len(t) > maxNumberBytes {
			return nil, fmt.Errorf("a number has %d characters, more than %d", len(t), maxNumberBytes)
		}
		return &value{kind: kindNumber, text: t.String()}, nil
	case string:
		return &value{kind: kindString, text: t}, nil
	case stdjson.Delim:
		if t == '[' {
			out := &value{kind: kindArray}
			for d.More() {
				item, err := readValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				out.items = append(out.items, item)
			}
			_, err := d.Token()
			return out, err
		}
		out, seen := &value{kind: kindObject}, map[string]bool{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			item, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			text, _ := name.(string)
			if seen[text] {
				return nil, fmt.Errorf("the member %q comes twice", text)
			}
			seen[text] = true
			out.members = append(out.members, member{text, item})
		}
		_, err := d.Token()
		return out, err
	}
	return nil, fmt.Errorf("%v", token)
}

// quoted is a string as JSON, in the one spelling that grammars write texts of their own in.
func quoted(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		if r < 0x20 || r == '"' || r == '\\' {
			out.WriteString(escaped(r))
		} else {
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// rational is the value of a number; nil: its exponent is too large.
func rational(text string) *big.Rat {
	if at := strings.IndexAny(text, "eE"); at >= 0 && len(strings.TrimLeft(text[at+1:], "+-0")) > 2 {
		return nil
	}
	r, _ := new(big.Rat).SetString(text)
	return r
}

// textStep is how many bytes of a text count as much as a value.
const textStep = 64

// size is how much there is to compare of a value.
func (v *value) size() int {
	n := 1 + len(v.text)/textStep
	for _, item := range v.items {
		n += item.size()
	}
	for _, m := range v.members {
		n += m.value.size()
	}
	return n
}

// equal says whether two values are the same in JSON Schema's sense.
func equal(a, b *value) bool {
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case kindNumber:
		x, y := rational(a.text), rational(b.text)
		return x != nil && y != nil && x.Cmp(y) == 0
	case kindArray:
		if len(a.items) != len(b.items) {
			return false
		}
		for i := range a.items {
			if !equal(a.items[i], b.items[i]) {
				return false
			}
		}
		return true
	case kindObject:
		if len(a.members) != len(b.members) {
			return false
		}
		for _, m := range a.members {
			if other := b.get(m.name); other == nil || !equal(m.value, other) {
				return false
			}
		}
		return true
	}
	return a.text == b.text
}

// spellings are how a value that is no array and no object may be written.
func (v *value) spellings() []string {
	switch v.kind {
	case kindString:
		return []string{quoted(v.text)}
	case kindNumber:
		out := []string{v.text}
		if r := rational(v.text); r != nil && r.IsInt() && r.Num().String() != v.text {
			out = append(out, r.Num().String())
		}
		return out
	}
	return []string{v.text}
}
