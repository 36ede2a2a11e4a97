package grammar_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// schemas are common ones, with what each keyword is for.
var schemas = map[string]string{
	"person": `{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":20},"age":{"type":"integer","minimum":0,"maximum":150},
		"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":["a","b","c"]},"maxItems":3}},"required":["name","age"],"additionalProperties":false}`,
	"open":      `{"type":"object","properties":{"foo":{"type":"integer"},"bar":{"type":"string"},"f\"o\u0001":{"type":"null"}},"required":["bar"]}`,
	"typed":     `{"type":"object","additionalProperties":{"type":"integer"},"properties":{"foo":{"type":"string"}}}`,
	"tree":      `{"$defs":{"node":{"type":"object","properties":{"v":{"type":"number"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/node"}`,
	"variants":  `{"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"number","exclusiveMinimum":0}},"required":["kind","r"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"rect"},"w":{"type":"integer","minimum":-12,"maximum":1050}},"required":["kind","w"],"additionalProperties":false}]}`,
	"merged":    `{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":5},"b":{"pattern":"^[a-z]{2,4}$"}},"required":["b"]}]}`,
	"tuple":     `{"type":"array","prefixItems":[{"type":"boolean"},{"type":"string","pattern":"x"}],"items":{"type":"integer","exclusiveMaximum":10},"minItems":3,"maxItems":5}`,
	"dates":     `{"type":"array","items":{"anyOf":[{"type":"string","format":"date"},{"type":"string","format":"date-time"},{"type":"string","format":"time"},{"type":"string","format":"uuid"},{"type":"string","format":"ipv4"},{"type":"string","format":"ipv6"},{"type":"string","format":"duration"},{"type":"string","format":"hostname"}]},"minItems":1,"maxItems":4}`,
	"decimals":  `{"type":"array","items":{"type":"number","minimum":-1.25,"exclusiveMaximum":3.125},"minItems":1}`,
	"constants": `{"enum":[{"a":[1,2.50,"x"]},"é\n\"",null,true,-3,[]]}`,
	"anything":  `{}`,
	"lengths":   `{"type":"array","items":{"type":"string","minLength":3,"maxLength":5},"minItems":2}`,
	"words":     `{"type":"string","pattern":"^[a-z]+( [a-z]+)*$","maxLength":12}`,
}

// Every output that is drawn under the masks, whatever is drawn, is what an independent
// validator takes for valid; every mask on the way is what trying each token gives.
func TestOutputsAreValid(t *testing.T) {
	longtest.OneGoroutine(t)
	all := texts()
	v := vocabulary(t, all)
	for name, text := range schemas {
		t.Run(name, func(t *testing.T) { checkOutputs(t, v, all, text, 25, true) })
	}
}

// TestOutputsOfTheSuite does the same with the schemas of the public test suite.
func TestOutputsOfTheSuite(t *testing.T) {
	longtest.OneGoroutine(t)
	dir := suite(t)
	all := texts()
	v := vocabulary(t, all)
	for _, name := range files {
		for _, g := range groupsOf(t, dir, name) {
			if _, err := grammar.Compile(t.Context(), schema(string(g.Schema)), nil); err == nil {
				checkOutputs(t, v, all, string(g.Schema), 4, false)
			}
		}
	}
}

func checkOutputs(t *testing.T, v *grammar.Vocabulary, texts [][]byte, text string, times int, masks bool) {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	validator, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	form, err := grammar.Compile(t.Context(), schema(text), v)
	if err != nil {
		t.Fatal(err)
	}
	complete := 0
	for seed := range times {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		out, tokens, ended := walk(t, form, texts, r, 400)
		if masks && seed < 5 {
			again := form.Constrain([]int32{eos})
			var so []byte
			for i := range tokens {
				if i < 60 {
					checkMask(t, form, texts, so, again.Allowed(tokens[:i]))
				}
				so = append(so, texts[tokens[i]]...)
			}
		}
		if !ended {
			continue
		}
		complete++
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(out)))
		if err != nil {
			t.Fatalf("%q is not JSON: %v", out, err)
		}
		if err := validator.Validate(value); err != nil {
			t.Fatalf("%s is not valid: %v\n%s", out, err, text)
		}
	}
	if complete == 0 {
		t.Errorf("no output was complete: %s", text)
	}
}
