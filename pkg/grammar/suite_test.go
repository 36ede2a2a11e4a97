package grammar_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func schema(text string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: text}}
}

// suite is the folder of the tests of the public JSON Schema test suite; the test is skipped where
// there is none.
func suite(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TANDEM_JSON_SCHEMA_SUITE")
	if dir == "" {
		dir = "../../../shared/data/json-schema-test-suite"
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no JSON Schema test suite: set TANDEM_JSON_SCHEMA_SUITE to a checkout of it")
	}
	return filepath.Join(dir, "tests")
}

// files of the suite whose keywords are supported. Those that are not there have keywords that
// are refused, or test what no text can say: of $id and anchors, for one.
var files = []string{
	"additionalProperties", "allOf", "anyOf", "boolean_schema", "const", "default", "defs", "enum", "exclusiveMaximum",
	"exclusiveMinimum", "infinite-loop-detection", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
	"oneOf", "pattern", "prefixItems", "properties", "ref", "required", "type",
}

type group struct {
	Description string
	Schema      json.RawMessage
	Tests       []struct {
		Description string
		Data        json.RawMessage
		Valid       bool
	}
}

// groupsOf reads a file of the suite.
func groupsOf(t *testing.T, dir, name string) (groups []group) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "draft2020-12", name+".json"))
	if err == nil {
		err = json.Unmarshal(data, &groups)
	}
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// TestSuite holds grammars against the public test suite: a schema is refused or obeyed. Every
// valid instance is accepted, in some order of keys, compact and with spaces, and no invalid one
// is, in any.
func TestSuite(t *testing.T) {
	longtest.OneGoroutine(t)
	dir := suite(t)
	refused := map[string]int{}
	compiled, instances := 0, 0
	for _, name := range files {
		for _, g := range groupsOf(t, dir, name) {
			form, err := grammar.Compile(t.Context(), schema(string(g.Schema)), nil)
			nothing := err != nil && strings.Contains(err.Error(), "nothing matches it")
			if err != nil && !nothing {
				refused[fmt.Sprintf("%s: %s: %v", name, g.Description, err)]++
				continue
			}
			compiled++
			for _, test := range g.Tests {
				instances++
				accepted := false
				if !nothing {
					accepted = accepts(t, form, test.Data)
				}
				if accepted && !test.Valid || !accepted && test.Valid {
					t.Errorf("%s: %s: %s: accepted is %v of %s\n%s", name, g.Description, test.Description, accepted, test.Data, g.Schema)
				}
			}
		}
	}
	var why []string
	for text := range refused {
		why = append(why, text)
	}
	sort.Strings(why)
	t.Logf("%d schemas obeyed with %d instances, %d refused:\n%s", compiled, instances, len(refused), strings.Join(why, "\n"))
	if compiled < 130 {
		t.Errorf("only %d schemas are supported", compiled)
	}
}

// accepts says whether some order of the keys of a value is accepted.
func accepts(t *testing.T, form *grammar.Grammar, data json.RawMessage) bool {
	for _, text := range spellings(t, data, ",", ":") {
		if form.Accepts([]byte(text)) {
			return true
		}
	}
	return false
}

const maxSpellings = 2000

// spellings writes a value in all orders of the keys of its objects; numbers that are whole
// without a fraction.
func spellings(t *testing.T, data json.RawMessage, comma, colon string) []string {
	t.Helper()
	switch data[0] {
	case '{':
		var members map[string]json.RawMessage
		if err := json.Unmarshal(data, &members); err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range members {
			names = append(names, name)
		}
		sort.Strings(names)
		var out []string
		permute(names, func(order []string) {
			texts := []string{""}
			for i, name := range order {
				var longer []string
				for _, before := range texts {
					for _, value := range spellings(t, members[name], comma, colon) {
						if i > 0 {
							value = before + comma + quote(t, name) + colon + value
						} else {
							value = quote(t, name) + colon + value
						}
						longer = append(longer, value)
					}
				}
				texts = longer
			}
			for _, text := range texts {
				out = append(out, "{"+text+"}")
			}
			out = out[:min(len(out), maxSpellings)]
		})
		return out
	case '[':
		var items []json.RawMessage
		if err := json.Unmarshal(data, &items); err != nil {
			t.Fatal(err)
		}
		texts := []string{""}
		for i, item := range items {
			var longer []string
			for _, before := range texts {
				for _, value := range spellings(t, item, comma, colon) {
					if i > 0 {
						value = before + comma + value
					}
					longer = append(longer, value)
				}
			}
			texts = longer[:min(len(longer), maxSpellings)]
		}
		for i := range texts {
			texts[i] = "[" + texts[i] + "]"
		}
		return texts
	case '"':
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			t.Fatal(err)
		}
		return []string{quote(t, text)}
	case 't', 'f', 'n':
		return []string{string(data)}
	}
	if r, ok := new(big.Rat).SetString(string(data)); ok && r.IsInt() {
		return []string{r.Num().String()}
	}
	return []string{string(data)}
}

func permute(names []string, visit func([]string)) {
	if len(names) == 0 {
		visit(nil)
		return
	}
	var step func(k int)
	step = func(k int) {
		if k == len(names) {
			visit(names)
			return
		}
		for i := k; i < len(names); i++ {
			names[k], names[i] = names[i], names[k]
			step(k + 1)
			names[k], names[i] = names[i], names[k]
		}
	}
	step(0)
}

// quote is a string as JSON without escapes for HTML.
func quote(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}
