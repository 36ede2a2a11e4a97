//go:build !race

// The client takes minutes to compile for the race detector. What it asks is checked for races
// in services/router/openai, and by the tests here that need no client.

package mesh_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	api "github.com/tandem-serving/tandem/services/router/openai"
)

// specified are the fields of a request of OpenAI's specification, as the official client, which is
// generated from it, has them.
func specified[Params any]() (names []string) {
	for field := range reflect.TypeFor[Params]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return append(names, "stream") // the client has methods for it
}

// tabled are the fields in the tables of a page's sections, by heading.
func tabled(t *testing.T, page string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	heading := ""
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			heading = strings.TrimSpace(title)
		}
		cells := strings.SplitN(line, "|", 3)
		if len(cells) < 3 || cells[0] != "" {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			out[heading] = append(out[heading], name[1])
		}
	}
	return out
}

// docs/openai.md and the OpenAPI description say of every field of the specification what is done
// with it.
func TestEverySpecifiedFieldIsInATable(t *testing.T) {
	tables := tabled(t, "../../../docs/openai.md")
	var described struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
				Refused    []string `json:"x-tandem-refused"`
				Ignored    []string `json:"x-tandem-ignored"`
			}
		}
	}
	if err := json.Unmarshal(api.OpenAPI(), &described); err != nil {
		t.Fatal(err)
	}
	shared := []string{"Accepted, without effect", "Completions, chats and responses"}
	for _, c := range []struct {
		endpoint, schema string
		fields           []string
		sections         []string
	}{
		{"completions", "CompletionRequest", specified[openai.CompletionNewParams](), append(slices.Clone(shared), "Completions")},
		{"chat completions", "ChatCompletionRequest", specified[openai.ChatCompletionNewParams](), append(slices.Clone(shared), "Chats")},
		{"responses", "ResponseRequest", specified[responses.ResponseNewParams](), append(slices.Clone(shared), "Responses")},
		{"input tokens", "ResponseRequest", specified[responses.InputTokenCountParams](), append(slices.Clone(shared), "Responses")},
	} {
		if len(c.fields) < 10 {
			t.Fatalf("%s: the client's type has only the fields %v", c.endpoint, c.fields)
		}
		schema := described.Components.Schemas[c.schema]
		for _, field := range c.fields {
			if !slices.ContainsFunc(c.sections, func(section string) bool { return slices.Contains(tables[section], field) }) {
				t.Errorf("%s: docs/openai.md has no row for %s in its sections %q", c.endpoint, field, c.sections)
			}
			_, property := schema.Properties[field]
			if !property && !slices.Contains(schema.Refused, field) && !slices.Contains(schema.Ignored, field) {
				t.Errorf("%s: openapi.json's %s does not have %s", c.endpoint, c.schema, field)
			}
		}
	}
}

// lacking are the members that OpenAI's specification requires of a value, by the official client's
// types, and that its JSON lacks. Members that are null lack nothing.
func lacking(at string, value reflect.Value, text json.RawMessage) (names []string) {
	if string(text) == "null" {
		return nil
	}
	if variant := value.MethodByName("AsAny"); variant.IsValid() { // of a union: the type that it is
		if value = variant.Call(nil)[0].Elem(); !value.IsValid() {
			return []string{at + ": of no known type"}
		}
	}
	switch value.Kind() {
	case reflect.Slice:
		var elements []json.RawMessage
		if err := json.Unmarshal(text, &elements); err != nil || len(elements) != value.Len() {
			return []string{at + ": no array of its length"}
		}
		for i, element := range elements {
			names = append(names, lacking(at+"[]", value.Index(i), element)...)
		}
	case reflect.Struct:
		var members map[string]json.RawMessage
		if json.Unmarshal(text, &members) != nil {
			return nil // a union's string, such as "auto"
		}
		for field, member := range value.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if inner, has := members[name]; has {
				names = append(names, lacking(at+"."+name, member, inner)...)
			} else if field.Tag.Get("api") == "required" {
				names = append(names, at+"."+name)
			}
		}
	}
	return names
}

// A response and each event of its stream have every member that the specification requires.
func TestResponsesHaveEveryRequiredMember(t *testing.T) {
	overOpenAI(t, nil, func(t *testing.T, _ mesh.Up, client openai.Client) {
		text := responseTo("Tell me of a king.", 9)
		text.Include = []responses.ResponseIncludable{responses.ResponseIncludableMessageOutputTextLogprobs}
		text.TopLogprobs = openai.Int(1)
		call := responseTo("How warm is it?", 200)
		call.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"city"}, "properties": map[string]any{"city": map[string]any{"enum": []string{"Rome", "Oslo"}}},
		}, true)}
		call.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfFunctionTool: &responses.ToolChoiceFunctionParam{Name: "weather"}}
		kinds := map[string]bool{}
		for _, q := range []responses.ResponseNewParams{text, call} {
			whole, err := client.Responses.New(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if names := lacking("response", reflect.ValueOf(*whole), json.RawMessage(whole.RawJSON())); names != nil {
				t.Errorf("%s lacks %q", whole.RawJSON(), names)
			}
			stream := client.Responses.NewStreaming(t.Context(), q)
			for stream.Next() {
				event := stream.Current()
				kinds[event.Type] = true
				if names := lacking(event.Type, reflect.ValueOf(event), json.RawMessage(event.RawJSON())); names != nil {
					t.Errorf("%s lacks %q", event.RawJSON(), names)
				}
			}
			if err := stream.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if len(kinds) < 11 {
			t.Errorf("only the events %v came", kinds)
		}
	})
}
