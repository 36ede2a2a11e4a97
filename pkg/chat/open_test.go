package chat_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/chat"
)

// modelWith is a folder with files of these contents.
func modelWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWhereTemplatesAre(t *testing.T) {
	const config = `{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null, "chat_template": "config {{ bos_token }}{{ eos_token }}"}`
	cases := map[string]struct {
		files map[string]string
		given string
		tools bool
		want  string
	}{
		"configuration":   {map[string]string{"tokenizer_config.json": config}, "", false, "config <s></s>"},
		"jinja":           {map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "jinja {{ bos_token }}"}, "", false, "jinja <s>"},
		"a missing token": {map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "{{ pad_token is defined }}"}, "", false, "False"},
		"old JSON":        {map[string]string{"tokenizer_config.json": config, "chat_template.json": `{"chat_template": "old"}`}, "", false, "old"},
		"a file given":    {map[string]string{"tokenizer_config.json": config, "mine.jinja": "mine {{ bos_token }}"}, "mine.jinja", false, "mine <s>"},
		"JSON given":      {map[string]string{"mine.json": `{"chat_template": "mine"}`}, "mine.json", false, "mine"},
		"special tokens of their own file": {map[string]string{
			"special_tokens_map.json": `{"bos_token": "<x>", "additional_special_tokens": ["<a>", {"content": "<b>"}]}`,
			"chat_template.jinja":     "{{ bos_token }}{{ additional_special_tokens }}",
		}, "", false, "<x>['<a>', '<b>']"},
		"named":            {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "usual"}, {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{% broken"}]}`}, "", false, "usual"},
		"named for tools":  {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default", "template": "usual"}, {"name": "tool_use", "template": "tools"}]}`}, "", true, "tools"},
		"beside for tools": {map[string]string{"chat_template.jinja": "usual", "additional_chat_templates/tool_use.jinja": "tools"}, "", true, "tools"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := modelWith(t, c.files)
			file := ""
			if c.given != "" {
				file = filepath.Join(dir, c.given)
			}
			template, err := chat.Open(dir, file)
			if err != nil {
				t.Fatal(err)
			}
			conversation := chat.Conversation{Messages: []chat.Message{{Role: "user", Content: "x"}}}
			if c.tools {
				conversation.Tools = []any{map[string]any{"type": "function"}}
			}
			got, err := template.Render(t.Context(), conversation)
			if err != nil || got != c.want {
				t.Errorf("%q, error %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestTemplatesThatCannotBeOpened(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		given string
		want  string
	}{
		"none":             {nil, "", "--chat-template FILE"},
		"null":             {map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, "", "--chat-template FILE"},
		"a number":         {map[string]string{"tokenizer_config.json": `{"chat_template": 7}`}, "", "neither text nor a list"},
		"no JSON":          {map[string]string{"tokenizer_config.json": `{`}, "", "tokenizer_config.json"},
		"a file not there": {nil, "nothing.jinja", "nothing.jinja"},
		"an include":       {map[string]string{"chat_template.jinja": "a\n{% include '/etc/passwd' %}"}, "", `chat_template.jinja line 2: "include" is refused`},
		"a filter":         {map[string]string{"chat_template.jinja": "\n\n{{ x | sparkle }}"}, "", `line 3: no filter named "sparkle"`},
		"a named one":      {map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "{% sparkle %}"}]}`}, "", `(template "tool_use") line 1: the block "sparkle" is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := modelWith(t, c.files)
			file := ""
			if c.given != "" {
				file = filepath.Join(dir, c.given)
			}
			_, err := chat.Open(dir, file)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if name == "none" && !errors.Is(err, chat.ErrNone) {
				t.Errorf("error %v is not ErrNone", err)
			}
		})
	}
}

func TestRefusedConversations(t *testing.T) {
	user := []chat.Message{{Role: "user", Content: "x"}}
	for name, c := range map[string]struct {
		source string
		c      chat.Conversation
		want   string
		raised bool
	}{
		"no messages":          {"a", chat.Conversation{}, "messages: give at least one", false},
		"a reserved argument":  {"a", chat.Conversation{Messages: user, Arguments: map[string]any{"messages": 1}}, "template_arguments.messages", false},
		"the template refuses": {"\n{{ raise_exception('only users') }}", chat.Conversation{Messages: user}, "line 2: only users", true},
		"a method":             {"{{ 'a'.encode() }}", chat.Conversation{Messages: user}, "encode: is not supported", false},
		"not to be continued":  {"a", chat.Conversation{Messages: user, ContinueLast: true}, "cannot be continued", false},
		"nested too deep":      {"a", chat.Conversation{Messages: user, Arguments: map[string]any{"a": deep(1000)}}, "nested more than", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := renderSource(t, c.source, c.c)
			var problem *chat.Error
			if err == nil || !strings.Contains(err.Error(), c.want) || c.raised != (errors.As(err, &problem) && problem.Raised) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func deep(n int) any {
	var v any = 1.0
	for range n {
		v = []any{v}
	}
	return v
}

// OpenAI's API gives a call's arguments as text; templates want the object, with its members in their
// order. What is no object stays text.
func TestArgumentsAsText(t *testing.T) {
	for text, want := range map[string]string{
		`{"b": 1, "a": 12345678901234567}`:  `{"b": 1, "a": 12345678901234567}`,
		`{"name": {"z": 1.0, "id": [1e2]}}`: `{"name": {"z": 1.0, "id": [100.0]}}`,
		`{"x": 1, "b": 2, "x": 3}`:          `{"x": 3, "b": 2}`,
		" \r\n\t{ } ":                       `{}`,
		`{no JSON`:                          `"{no JSON"`,
		`{"a": 1}]`:                         `"{\"a\": 1}]"`,
		`[1]`:                               `"[1]"`,
		`null`:                              `"null"`,
	} {
		c := chat.Conversation{Messages: []chat.Message{{Role: "assistant", ToolCalls: []any{map[string]any{
			"id": "1", "function": map[string]any{"name": "f", "arguments": text},
		}}}}}
		got, err := renderSource(t, "{{ messages[0].tool_calls[0] | tojson }}", c)
		if want := `{"id": "1", "function": {"name": "f", "arguments": ` + want + `}}`; err != nil || got != want {
			t.Errorf("%s: %s, error %v, want %s", text, got, err, want)
		}
	}
}

// Whole numbers beyond 64 bits, which models write into arguments, are printed as they are; nothing is
// computed with them.
func TestNumbersBeyond64Bits(t *testing.T) {
	const long = "-12345678901234567890123456789012345678901"
	for source, want := range map[string]string{
		"{{ a | tojson }}": `{"x": 18446744073709551616, "y": [` + long + `]}`,
		"{{ a }}":          `{'x': 18446744073709551616, 'y': [` + long + `]}`,
		"{{ a.x }} {{ a.x ~ 'a' }} {{ a.x | string }}":                                      "18446744073709551616 18446744073709551616a 18446744073709551616",
		"{{ a.y[0] | int }}":                                                                long,
		"{{ a.x is number }} {{ a.x is integer }}":                                          "True True",
		"{{ a.x is float }} {{ a.x is string }}":                                            "False False",
		"{{ a.x == a.x }} {{ a.x == 1 }} {{ a.x == '18446744073709551616' }} {{ not a.x }}": "True False False False",
		"{{ a.x + 1 }}":     "",
		"{{ -a.x }}":        "",
		"{{ a.x < 1 }}":     "",
		"{{ a.x is even }}": "",
		"{{ a.x | abs }}":   "",
		"{{ a.x | float }}": "",
		"{{ a.x | round }}": "",
		"{{ 'a' * a.x }}":   "",
		"{{ 'abc'[:a.x] }}": "",
		"{{ range(a.x) }}":  "",
		"{{ {a.x: 1} }}":    "",
	} {
		c := chat.Conversation{Messages: []chat.Message{{Role: "assistant", ToolCalls: []any{map[string]any{
			"function": map[string]any{"name": "f", "arguments": `{"x": 18446744073709551616, "y": [` + long + `]}`},
		}}}}}
		got, err := renderSource(t, "{% set a = messages[0].tool_calls[0].function.arguments %}"+source, c)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%s: %q, error %v, want %q", source, got, err, want)
		}
	}
	for number, want := range map[string]string{
		strings.Repeat("9", 4301):         "99… has more than 4300 digits",
		"1e400":                           "1e400 is too large",
		strings.Repeat("9", 4301) + "e99": "99… is too large",
	} {
		c := chat.Conversation{Messages: []chat.Message{{Role: "user"}}, Tools: []any{json.RawMessage(number)}}
		if _, err := renderSource(t, "a", c); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 100 {
			t.Errorf("error %.200v, want %q", err, want)
		}
	}
}

func TestBundledModel(t *testing.T) {
	template, err := chat.Open(filepath.Join("..", "..", "models", "fable"), "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := template.Render(t.Context(), chat.Conversation{Messages: []chat.Message{
		{Role: "user", Content: "Once"}, {Role: "assistant", Content: "upon"}, {Role: "user", Content: "a time"},
	}})
	if err != nil || got != "<|begin_of_text|>Once\nupon\na time\n" {
		t.Errorf("%q, error %v", got, err)
	}
	if ending, is := template.(chat.AnswerForm); !is || ending.EndToken() != "<|end_of_text|>" {
		t.Errorf("%T does not know what ends an answer", template)
	}
}

// A file of the model whose link leads nowhere is not taken for one that the model does not have.
func TestLinksToNowhere(t *testing.T) {
	const tools = "additional_chat_templates"
	for _, name := range []string{"chat_template.jinja", "chat_template.json", "tokenizer_config.json", "special_tokens_map.json", tools, filepath.Join(tools, "tool_use.jinja")} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"other.json": `{"chat_template": "x"}`}
			if strings.HasPrefix(name, tools) {
				files["chat_template.jinja"] = "x"
			}
			if name != tools {
				files[filepath.Join(tools, "unused")] = ""
			}
			dir := modelWith(t, files)
			if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if _, err := chat.Open(dir, filepath.Join(dir, "other.json")); name == "tokenizer_config.json" || name == "special_tokens_map.json" {
				if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("with a template given: error %v", err)
				}
			} else if err != nil {
				t.Errorf("with a template given: error %v", err)
			}
			if _, err := chat.Open(dir, ""); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v", err)
			}
		})
	}
}
