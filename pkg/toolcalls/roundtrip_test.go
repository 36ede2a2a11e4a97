package toolcalls_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

var tools = []toolcalls.Tool{
	{Name: "get_weather", Parameters: `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"hours":{"type":"array","items":{"type":"number"}}},"required":["city"],"additionalProperties":false}`},
	{Name: "add-2", Parameters: `{"type":"object"}`},
}

// newer is how later models of Mistral have it.
const newer = `{{ bos_token }}{% for m in messages %}{% if m.role == "user" %}[INST]{{ m.content }}[/INST]{% else %}{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endif %}{% endfor %}`

// Calls as a family's chat template writes them are what the grammar of its calls allows, as a
// whole and behind free text, and are read as what they were.
func TestRoundTrip(t *testing.T) {
	for _, c := range []struct {
		template, format string
		most             int // calls
		special          bool
	}{
		{"qwen2.5.jinja", toolcalls.Hermes, 3, false},
		{"qwen3.jinja", toolcalls.Hermes, 3, true},
		{"llama3.1.jinja", toolcalls.Llama3, 1, true},
		{"llama3.2.jinja", toolcalls.Llama3, 1, true},
		{"mistral-v0.3.jinja", toolcalls.Mistral, 3, true},
		{"mistral-nemo.jinja", toolcalls.Mistral, 3, true},
		{"", toolcalls.Mistral, 3, true},
	} {
		source := newer
		if c.template != "" {
			text, err := os.ReadFile("../chat/testdata/templates/" + c.template)
			if err != nil {
				t.Fatal(err)
			}
			source = string(text)
		}
		template, err := chat.Parse(c.template, source, map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
		if err != nil {
			t.Fatal(err)
		}
		format, is := toolcalls.Of("", source)
		if !is || format.Name != c.format {
			t.Fatalf("%s is taken for %q", c.template, format.Name)
		}
		var special []string
		if c.special {
			special = format.Markers()
		}
		shown := strings.NewReplacer() // special tokens as grammars have them
		if c.special {
			var pairs []string
			for _, marker := range special {
				pairs = append(pairs, marker, "\xff"+marker+"\xff")
			}
			shown = strings.NewReplacer(pairs...)
		}
		forms := map[string]*grammar.Grammar{}
		for _, required := range []bool{true, false} {
			source := &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: format.Tags(tools, required, c.most == 1, special)}}
			if forms[fmt.Sprintf("required %v", required)], err = grammar.Compile(t.Context(), source, nil); err != nil {
				t.Fatal(err)
			}
		}
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 3))
			want := said{Calls: [][2]string{}}
			message := chat.Message{Role: "assistant"}
			for range 1 + r.IntN(c.most) {
				name, arguments := drawCall(r)
				want.Calls = append(want.Calls, [2]string{name, arguments})
				message.ToolCalls = append(message.ToolCalls, map[string]any{
					"id": "abcdefghi", "type": "function", "function": map[string]any{"name": name, "arguments": arguments},
				})
			}
			text := answerOf(t, template, message)
			if c.format == toolcalls.Mistral { // a model writes no ids
				text = strings.ReplaceAll(text, `, "id": "abcdefghi"`, "")
			}
			for name, form := range forms {
				if !form.Accepts([]byte(shown.Replace(text))) {
					t.Errorf("%s, %s does not allow %q", c.template, name, text)
				}
			}
			got := parse(t, format.NewParser([]string{tools[0].Name, tools[1].Name}, false), text)
			for i := range got.Calls {
				got.Calls[i][1] = normal(t, got.Calls[i][1])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %q (-want +got):\n%s", c.template, text, diff)
			}
		}
	}
}

// answerOf is what a template writes of an answer behind a question.
func answerOf(t *testing.T, template chat.Template, answer chat.Message) string {
	t.Helper()
	question := chat.Message{Role: "user", Content: "Well?"}
	before, err := template.Render(t.Context(), chat.Conversation{Messages: []chat.Message{question}})
	if err != nil {
		t.Fatal(err)
	}
	after, err := template.Render(t.Context(), chat.Conversation{Messages: []chat.Message{question, answer}})
	if err != nil {
		t.Fatal(err)
	}
	text, is := strings.CutPrefix(after, before)
	if !is {
		t.Fatalf("%q does not begin with %q", after, before)
	}
	text = strings.TrimPrefix(text, "<think>\n\n</think>\n\n")
	for _, end := range []string{"<|im_end|>", "<|eot_id|>", "</s>"} {
		text, _, _ = strings.Cut(text, end)
	}
	return text
}

// drawCall draws a call, with its arguments as normal writes them.
func drawCall(r *rand.Rand) (name, arguments string) {
	word := func() string {
		var out strings.Builder
		for range r.IntN(8) {
			out.WriteRune([]rune("aZ 09\"\\\n{}[]<>é日😀&'/")[r.IntN(20)])
		}
		return out.String()
	}
	value := map[string]any{"city": word()}
	if r.IntN(2) == 0 {
		value["days"] = r.IntN(1000) - 500
	}
	if r.IntN(2) == 0 {
		value["hours"] = []float64{0.5, float64(r.IntN(9))}
	}
	tool := tools[0]
	if r.IntN(2) == 0 {
		tool = tools[1]
		value = map[string]any{"x" + word(): []any{nil, true, map[string]any{"y": word()}}}
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return tool.Name, string(text)
}

func normal(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// llama32 is what the text models of Llama 3.2 have of calls: no mark before them.
const llama32 = `<|start_header_id|>{{ '{"name": "' + call.name + '", ' }}{{ '"parameters": ' }}{{ call.arguments | tojson }}`

// Formats are found in templates, or asked for by name.
func TestOf(t *testing.T) {
	for _, c := range []struct{ name, template, want string }{
		{"", "{{ messages }}", ""},
		{"", "a <tool_call> b", toolcalls.Hermes},
		{"", "<tool_call>\n<function=f>", ""},
		{"", "<tool_call>f\n<arg_key>", ""},
		{"", "<|python_tag|>", toolcalls.Llama3},
		{"", llama32, toolcalls.Llama3},
		{"", strings.ReplaceAll(llama32, "<|start_header_id|>", "<|im_start|>"), ""},
		{"", strings.ReplaceAll(llama32, "parameters", "arguments"), ""},
		{"", `<|start_header_id|>{% if tools %}Write {"name": function, "parameters": values}{% endif %}`, ""},
		{"", "<tool_call> " + llama32, toolcalls.Hermes},
		{"", "[TOOL_CALLS]", toolcalls.Mistral},
		{toolcalls.Hermes, "[TOOL_CALLS]", toolcalls.Hermes},
		{"other", "[TOOL_CALLS]", ""},
	} {
		format, is := toolcalls.Of(c.name, c.template)
		if format.Name != c.want || is != (c.want != "") {
			t.Errorf("%q, %q: %q", c.name, c.template, format.Name)
		}
	}
}
