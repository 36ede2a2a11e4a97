package grammar_test

import (
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
