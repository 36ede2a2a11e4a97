package grammar_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
)

// Names of properties may have the characters of references, and are still told apart.
func TestReferencesAndOddNames(t *testing.T) {
	for _, c := range []struct{ schema, is, isNot string }{
		{
			`{"properties":{"x":{"items":{"$ref":"#/$defs/a"}},"x/items":{"$ref":"#/$defs/b"}},"required":["x","x/items"],"additionalProperties":false,"$defs":{"a":{"type":"integer"},"b":{"type":"string"}}}`,
			`{"x":[1],"x/items":"s"}`, `{"x":["s"],"x/items":"s"}`,
		},
		{
			`{"properties":{"x~1y":{"$ref":"#/$defs/a~1b"},"x/y":{"$ref":"#/$defs/a~01b"}},"required":["x~1y","x/y"],"additionalProperties":false,"$defs":{"a/b":{"type":"integer"},"a~1b":{"type":"string"}}}`,
			`{"x~1y":1,"x/y":"s"}`, `{"x~1y":1,"x/y":1}`,
		},
		{
			`{"properties":{"a":{"$ref":"#/$defs/p~1q/items"},"b":{"$ref":"#/$defs/p/q/items"}},"required":["a","b"],"additionalProperties":false,"$defs":{"p/q":{"items":{"type":"array","items":{"$ref":"#/$defs/n"}}},"p":{"q":{"items":{"type":"array","items":{"type":"string"}}}},"n":{"type":"integer"}}}`,
			`{"a":[1],"b":["s"]}`, `{"a":["s"],"b":["s"]}`,
		},
	} {
		form, err := grammar.Compile(t.Context(), schema(c.schema), nil)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		if !form.Accepts([]byte(c.is)) || form.Accepts([]byte(c.isNot)) {
			t.Errorf("%s: accepts %s: %v, and %s: %v", c.schema, c.is, form.Accepts([]byte(c.is)), c.isNot, form.Accepts([]byte(c.isNot)))
		}
	}
}

// The values of an enum are held against all of their schema, also where it refers to itself.
func TestValuesOfRecursiveSchemas(t *testing.T) {
	for _, c := range []struct {
		schema     string
		is, isNots []string
	}{
		{
			`{"$ref":"#/$defs/n","$defs":{"n":{"enum":[{"next":null}],"properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`,
			[]string{`{"next":null}`}, []string{`{}`, `{"next":{"next":null}}`},
		},
		{
			`{"$ref":"#/$defs/n","$defs":{"n":{"enum":[{"next":null},{"next":{"next":null}},{"next":1},{"next":{}}],"properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`,
			[]string{`{"next":null}`, `{"next":{"next":null}}`}, []string{`{"next":1}`, `{"next":{}}`},
		},
		{
			`{"const":[[],[[]]],"items":{"$ref":"#/$defs/list"},"$defs":{"list":{"type":"array","items":{"$ref":"#/$defs/list"}}}}`,
			[]string{`[[],[[]]]`}, []string{`[]`},
		},
		{
			`{"enum":[{"a":1},{"a":2},{"a":"x"}],"properties":{"a":{"oneOf":[{"type":"integer"},{"minimum":2}]}}}`,
			[]string{`{"a":1}`, `{"a":"x"}`}, []string{`{"a":2}`},
		},
		{
			`{"enum":[{"a":[1,2]},{"a":[1,"x"]},{"a":[]}],"properties":{"a":{"allOf":[{"items":{"type":"integer"}},{"minItems":1}]}}}`,
			[]string{`{"a":[1,2]}`}, []string{`{"a":[1,"x"]}`, `{"a":[]}`},
		},
	} {
		form, err := grammar.Compile(t.Context(), schema(c.schema), nil)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		for _, text := range c.is {
			if !form.Accepts([]byte(text)) {
				t.Errorf("%s: does not accept %s", c.schema, text)
			}
		}
		for _, text := range c.isNots {
			if form.Accepts([]byte(text)) {
				t.Errorf("%s: accepts %s", c.schema, text)
			}
		}
	}
}

// A value of an enum whose schema refers to itself at once is refused.
func TestValueOfLoop(t *testing.T) {
	for _, c := range []struct{ schema, says string }{
		{`{"enum":[{"a":1}],"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}}`, "refers to itself"},
		{`{"enum":[{"a":1}],"properties":{"a":{"anyOf":[{},{"not":{}}]}}}`, "/properties/a/anyOf/1/not: the keyword is not supported"},
		{`{"enum":[{"a":1}],"properties":{"a":{"allOf":[]}}}`, "/properties/a/allOf: has to be an array"},
	} {
		if _, err := grammar.Compile(t.Context(), schema(c.schema), nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.schema, err, c.says)
		}
	}
}
