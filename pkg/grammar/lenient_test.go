package grammar_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// lenient is JSON of a schema whose keywords are annotations if they cannot be enforced.
func lenient(schema string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: &inferencev1.StructuralTags{
		Tags: []*inferencev1.StructuralTag{{JsonSchema: schema, Lenient: true}}, Single: true,
	}}}
}

// Where a tag is lenient, what cannot be enforced is named and the rest is enforced. Elsewhere it is refused.
func TestLenientSchemas(t *testing.T) {
	deep := `"pattern":"^[ab]*a[ab]{8}$"`
	for _, c := range []struct {
		schema, ignored string
		allows, refuses string // JSON texts, by spaces
	}{
		{`{"type":"object","x-order":1,"properties":{"u":{"type":"string","format":"uri","maxLength":3}},"required":["u"],"additionalProperties":false}`,
			"format=uri x-order", `{"u":"a"}`, `{"u":"abcd"} {} {"u":"a","v":1}`},
		{`{"type":"array","uniqueItems":true,"maxItems":2,"items":{"type":"integer"}}`, "uniqueItems", `[] [1] [1,1]`, `[1,1,1] ["a"]`},
		{`{"type":"object","propertyNames":{"maxLength":1},"minProperties":1,"maxProperties":2,"additionalProperties":{"type":"null"}}`,
			"maxProperties minProperties propertyNames", `{} {"ab":null}`, `{"a":1}`},
		{`{"type":"string","nullable":true,"maxLength":1}`, "nullable", `"a"`, `null "ab"`},
		{`{"oneOf":[{"type":"integer"},{"type":"number","maximum":5}]}`, "oneOf", `4 7 4.5`, `"a" 7.5`},
		{`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}],"discriminator":{"propertyName":"k"}}`,
			"discriminator", `{"k":"a"} {"k":"b"}`, `{"k":"c"} {}`},
		{`{"enum":["a","b","c"],"oneOf":[{"pattern":"(?=a)"},{"const":"b"}]}`, "oneOf pattern", `"a" "b"`, `"d"`},
		{`{"type":"string","pattern":"^(?!x)","maxLength":2}`, "pattern", `"xy"`, `"xyz"`},
		{`{"type":"string",` + deep + `,"maxLength":200}`, "maxLength", `"aaaaaaaaa" "abbbbbbbb"`, `"baaaaaaaa" "c"`},
		{`{"type":"number","multipleOf":0.5,"minimum":1}`, "multipleOf", `1 1.25`, `0`},
		{`{"type":"number","maximum":1.7976931348623157e+308,"minimum":0}`, "maximum", `5`, `-1`},
		{`{"type":"integer","maximum":1e60}`, "maximum", `5`, `1.5`},
		{`{"type":"integer","minimum":0,"maximum":1e60}`, "maximum", `5`, `-1 1.5`},
		{`{"type":"number","minimum":-1e60,"exclusiveMaximum":3}`, "minimum", `-5 2.5`, `3`},
		{`{"type":"integer","minimum":0,"exclusiveMinimum":true,"maximum":5,"exclusiveMaximum":false}`, "exclusiveMinimum", `0 5`, `-1 6`},
		{`{"type":"object","patternProperties":{"^x":{}},"additionalProperties":false}`, "additionalProperties patternProperties", `{} {"x":1}`, `1`},
		{`{"type":"object","additionalProperties":false,"properties":{"a":{"type":"null"}},"required":["a","x"],"patternProperties":{"^x":{}}}`,
			"additionalProperties patternProperties", `{"a":null,"x":1}`, `{"a":1,"x":1} {"a":null}`},
		{`{"const":{"x":1},"patternProperties":{"^x":{}},"additionalProperties":false}`, "additionalProperties patternProperties", `{"x":1}`, `{}`},
		{`{"type":"object","patternProperties":{},"additionalProperties":false}`, "patternProperties", `{}`, `{"x":1}`},
		{`{"type":"array","minItems":2000,"items":{"type":"null"}}`, "minItems", `[] [null]`, `[1]`},
		{`{"type":"array","maxItems":9007199254740991,"items":{"type":"null"}}`, "maxItems", `[] [null]`, `[1]`},
		{`{"type":"array","items":[{"type":"integer"}],"maxItems":1}`, "items", `["a"]`, `[1,2]`},
		{`{"$ref":"https://example.com/a.json"}`, "$ref", `1 "a"`, ``},
		{`{"properties":{"a":{"$id":"b","type":"null"}},"required":["a"],"additionalProperties":false}`, "$id", `{"a":null}`, `{"a":1}`},
		{`{"type":"integer","title":"t","default":1,"examples":[2],"format":"date"}`, "", `1`, `"a"`},
	} {
		g, err := grammar.Compile(t.Context(), lenient(c.schema), nil)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		if !slices.Equal(g.Ignored(), strings.Fields(c.ignored)) {
			t.Errorf("%s: ignores %q", c.schema, g.Ignored())
		}
		for _, text := range strings.Fields(c.allows) {
			if !g.Accepts([]byte(text)) {
				t.Errorf("%s: refuses %s", c.schema, text)
			}
		}
		for _, text := range strings.Fields(c.refuses) {
			if g.Accepts([]byte(text)) {
				t.Errorf("%s: allows %s", c.schema, text)
			}
		}
		strict := proto.CloneOf(lenient(c.schema))
		strict.GetStructuralTags().GetTags()[0].Lenient = false
		if _, err := grammar.Compile(t.Context(), strict, nil); (err != nil) != (c.ignored != "") {
			t.Errorf("%s, not lenient: %v", c.schema, err)
		}
	}
}

// What is no schema is refused, lenient or not.
func TestLenientSchemasAreWellFormed(t *testing.T) {
	for _, text := range []string{
		`{"type":"strin"}`, `{"uniqueItems":"yes"}`, `{"minProperties":-1}`, `{"multipleOf":0}`, `{"format":1}`, `{"maxLength":"3"}`, `{"pattern":1}`,
		`{"$ref":"#/$defs/none"}`, `{"required":true}`, `{"properties":[]}`, `{"minimum":"1"}`, `{"anyOf":[]}`, `{"items":{"type":1}}`, `{"allOf":[{"$ref":"#"}]}`, `[]`, `{"a":1,"a":2}`,
	} {
		if _, err := grammar.Compile(t.Context(), lenient(text), nil); err == nil {
			t.Errorf("%s is compiled", text)
		}
	}
}

// Of many keywords some are named, and long names in short.
func TestIgnoredKeywordsAreFew(t *testing.T) {
	var members []string
	for i := range 300 {
		members = append(members, fmt.Sprintf(`"x%d%s":1`, i, strings.Repeat("é", i)))
	}
	g, err := grammar.Compile(t.Context(), lenient("{"+strings.Join(members, ",")+"}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(g.Ignored()); n != 32 || !slices.IsSorted(g.Ignored()) {
		t.Errorf("%d are named: %q", n, g.Ignored())
	}
	for _, keyword := range g.Ignored() {
		if len(keyword) > 80 {
			t.Errorf("%q", keyword)
		}
	}
}
