package grammar_test

import (
	"fmt"
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
		schema    string
		is, isNot []string
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
		checkTexts(t, c.schema, c.is, c.isNot)
	}
}

// checkTexts says whether a schema's form accepts what it should.
func checkTexts(t *testing.T, source string, is, isNot []string) {
	t.Helper()
	form, err := grammar.Compile(t.Context(), schema(source), nil)
	if err != nil {
		t.Errorf("%s: %v", source, err)
		return
	}
	for _, text := range is {
		if !form.Accepts([]byte(text)) {
			t.Errorf("%s: does not accept %s", source, text)
		}
	}
	for _, text := range isNot {
		if form.Accepts([]byte(text)) {
			t.Errorf("%s: accepts %s", source, text)
		}
	}
}

// oneOf is understood where what a schema refers to tells its alternatives apart, itself too.
func TestOneOfRecursiveSchemas(t *testing.T) {
	var kinds, referring, defs []string
	for i := range 20 {
		defs = append(defs, fmt.Sprintf(`"k%d":{"const":"k%d"}`, i, i))
		referring = append(referring, fmt.Sprintf(`{"type":"object","properties":{"left":{"$ref":"#/$defs/n"},"right":{"$ref":"#/$defs/n"},"type":{"$ref":"#/$defs/k%d"}},"required":["left","right","type"]}`, i))
		kinds = append(kinds, fmt.Sprintf(`{"type":"object","properties":{"type":{"const":"k%d"},"left":{"$ref":"#"},"right":{"$ref":"#"}},"required":["left","right","type"]}`, i))
	}
	for _, c := range []struct {
		schema    string
		is, isNot []string
	}{
		{
			`{"$ref":"#/$defs/n","$defs":{"n":{"oneOf":[{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}},"required":["next"]},{"type":"object","properties":{"next":{"type":"null"}},"required":["next"]}]}}}`,
			[]string{`{"next":null}`, `{"next":{"next":null}}`}, []string{`{}`, `{"next":1}`},
		},
		{
			`{"$ref":"#/$defs/n","$defs":{` + strings.Join(defs, ",") + `,"n":{"oneOf":[{"type":"null"},` + strings.Join(referring, ",") + `]}}}`,
			[]string{`{"left":null,"right":null,"type":"k3"}`}, []string{`{"left":null,"right":1,"type":"k3"}`},
		},
		{
			`{"oneOf":[{"type":"null"},` + strings.Join(kinds, ",") + `]}`,
			[]string{`{"type":"k3","left":null,"right":{"type":"k19","left":null,"right":null}}`}, []string{`{"type":"k3","left":null,"right":1}`},
		},
	} {
		checkTexts(t, c.schema, c.is, c.isNot)
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
