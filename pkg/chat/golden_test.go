package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/chat"
)

// conversations is testdata/conversations.json, by name.
func conversations(t testing.TB) map[string]chat.Conversation {
	t.Helper()
	data, err := os.ReadFile("testdata/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name     string
		Messages []struct {
			Role, Name string
			Content    *string
			Reasoning  string `json:"reasoning_content"`
			ToolCalls  []any  `json:"tool_calls"`
			ToolCallID string `json:"tool_call_id"`
		}
		Tools     []any
		Arguments map[string]any
		Continue  bool
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]chat.Conversation)
	for _, each := range list {
		c := chat.Conversation{Tools: each.Tools, Arguments: each.Arguments, ContinueLast: each.Continue}
		for _, m := range each.Messages {
			message := chat.Message{Role: m.Role, Name: m.Name, NoContent: m.Content == nil, Reasoning: m.Reasoning, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID}
			if m.Content != nil {
				message.Content = *m.Content
			}
			c.Messages = append(c.Messages, message)
		}
		out[each.Name] = c
	}
	return out
}

// The families' templates give what transformers' Jinja2 gives.
func TestTemplatesOfFamilies(t *testing.T) {
	of := conversations(t)
	sources := make(map[string]string)
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) < 13 {
		t.Fatalf("%d templates, error %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources[filepath.Base(file)] = string(data)
	}
	rendered := 0
	for _, e := range readExpected(t, "testdata/expected.jsonl") {
		c, ok := of[e.Conversation]
		if !ok {
			t.Fatalf("no conversation %q: run expected.py", e.Conversation)
		}
		got, err := renderSource(t, sources[e.Template], c)
		if (err != nil) != e.Error {
			t.Errorf("%s, %s: %q, error %v; Jinja2: %q, error %v", e.Template, e.Conversation, got, err, e.Output, e.Error)
			continue
		}
		if diff := cmp.Diff(e.Output, got); err == nil && diff != "" {
			t.Errorf("%s, %s (-Jinja2 +ours):\n%s", e.Template, e.Conversation, diff)
		}
		rendered++
	}
	if rendered != len(files)*len(of) {
		t.Errorf("%d compared of %d templates and %d conversations: run expected.py", rendered, len(files), len(of))
	}
}

// Templates that know of calls are told of messages without content, as some render calls only there;
// an empty text is content. Others are told of an empty text.
func TestNoContent(t *testing.T) {
	const sees = `{{ messages[0].content is none }} {{ messages[0].content }}`
	call := map[string]any{"type": "function", "function": map[string]any{"name": "f", "arguments": map[string]any{}}}
	for _, c := range []struct {
		source string
		none   bool
		goOn   bool
		want   string
	}{
		{sees + "{# tool_calls #}", true, false, "true None"},
		{sees + "{# tool_calls #}", true, true, "false "},
		{sees + "{# tool_calls #}", false, false, "false "},
		{sees, true, false, "false "},
	} {
		got, err := renderSource(t, c.source, chat.Conversation{
			Messages: []chat.Message{{Role: "assistant", NoContent: c.none, ToolCalls: []any{call}}}, ContinueLast: c.goOn,
		})
		if err != nil || !strings.EqualFold(got, c.want) {
			t.Errorf("%+v: %q, error %v", c, got, err)
		}
	}
}
