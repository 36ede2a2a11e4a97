package openai_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// someTools are two functions, and ourTools what the backend is told of them.
const (
	someTools = `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}},{"type":"function","function":{"name":"g"}}]`
	ourTools  = `tools_json:'{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}' tools_json:'{"type":"function","function":{"name":"g"}}'`
)

// said is a message, or what the messages of a stream add to one.
type said struct {
	Role      string
	Content   *string
	ToolCalls []struct {
		Index    *int
		ID, Type string
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
	FunctionCall *struct{ Name, Arguments string } `json:"function_call"`
}

type saidChoice struct {
	Message, Delta said
	FinishReason   *string `json:"finish_reason"`
}

// put is the message that a stream says, as clients put it together, with the reason of its end.
func put(t *testing.T, body string) (out saidChoice) {
	t.Helper()
	m := &out.Message
	for line := range strings.Lines(body) {
		data, is := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !is || data == "[DONE]" {
			continue
		}
		var message struct{ Choices []saidChoice }
		if err := json.Unmarshal([]byte(data), &message); err != nil {
			t.Fatal(err)
		}
		for _, c := range message.Choices {
			if c.Delta.Content != nil {
				m.Content = new(*orEmpty(m.Content) + *c.Delta.Content)
			}
			for _, call := range c.Delta.ToolCalls {
				if *call.Index == len(m.ToolCalls) {
					call.Function.Arguments, call.Index = "", nil
					m.ToolCalls = append(m.ToolCalls, call)
				}
			}
			for _, call := range c.Delta.ToolCalls {
				m.ToolCalls[*call.Index].Function.Arguments += call.Function.Arguments
			}
			if f := c.Delta.FunctionCall; f != nil {
				if m.FunctionCall == nil {
					m.FunctionCall = &struct{ Name, Arguments string }{Name: f.Name}
				}
				m.FunctionCall.Arguments += f.Arguments
			}
			if c.FinishReason != nil {
				out.FinishReason = c.FinishReason
			}
		}
	}
	return out
}

func orEmpty(text *string) *string {
	if text == nil {
		return new(string)
	}
	return text
}

// allowsF allows one of someTools.
const allowsF = `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}`

// Calls of each family, whole and streamed: the same message, and the reason of its end.
func TestToolCalls(t *testing.T) {
	for _, c := range []struct {
		name, format, fields, text, content, reason string
		calls                                       [][2]string
	}{
		{"qwen", "hermes", someTools, "I see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"é\"]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "I see.", "tool_calls", [][2]string{{"f", `{"x": [1, "é"]}`}, {"g", "{}"}}},
		{"llama", "llama3_json", someTools, `{"name": "f", "parameters": {"x": 1}}`, "", "tool_calls", [][2]string{{"f", `{"x": 1}`}}},
		{"mistral", "mistral", someTools, `[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]f[ARGS]{"x": 2}`, "", "tool_calls", [][2]string{{"f", `{"x": 1}`}, {"f", `{"x": 2}`}}},
		{"no call", "hermes", someTools, "No <tool_call> today. ", "No <tool_call> today. ", "stop", nil},
		{"another function", "hermes", someTools, "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>", "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>", "stop", nil},
		{"cut", "hermes", someTools, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1", "", "stop", [][2]string{{"f", `{"x": 1`}}},
		{"cut, required", "hermes", someTools + `,"tool_choice":"required"`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"nam", "", "tool_calls", [][2]string{{"f", "{}"}}},
		{"a form", "hermes", someTools + `,"response_format":{"type":"json_object"}`, "{\"a\": \"<tool_call>\"}<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "{\"a\": \"<tool_call>\"}<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "stop", nil},
		{"a call, not the form", "hermes", someTools + `,"response_format":{"type":"json_object"}`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "", "tool_calls", [][2]string{{"f", "{}"}, {"g", "{}"}}},
		{"none", "hermes", someTools + `,"tool_choice":"none"`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "stop", nil},
		{"one at most", "hermes", someTools + `,"parallel_tool_calls":false`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "tool_calls", [][2]string{{"f", `{"x": 1}`}}},
		{"llama, two", "llama3_json", someTools, `{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}`, `; {"name": "g", "parameters": {}}`, "tool_calls", [][2]string{{"f", "{}"}}},
		{"allowed", "llama3_json", someTools + allowsF, `{"name": "f", "parameters": {}}`, "", "tool_calls", [][2]string{{"f", "{}"}}},
		{"not allowed", "llama3_json", someTools + allowsF, `{"name":"g", "parameters": {}}`, `{"name":"g", "parameters": {}}`, "stop", nil},
		{"functions, two", "hermes", `"functions":[{"name":"f"},{"name":"g"}]`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "function_call", [][2]string{{"f", `{"x": 1}`}}},
		{"functions", "hermes", `"functions":[{"name":"f"}]`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", "", "function_call", [][2]string{{"f", `{"x": 1}`}}},
	} {
		for _, held := range []string{"", "\n"} {
			f := &fake{words: strings.Split(c.text, ""), calls: c.format, held: held}
			if len(c.calls) == 0 || strings.HasPrefix(c.name, "cut") {
				f.held = ""
			}
			w := ask(t, f, http.MethodPost, chats, `{`+hi+`,`+c.fields+`}`)
			var answer struct{ Choices []saidChoice }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Choices) != 1 {
				t.Fatalf("%v: %s", err, w.Body)
			}
			whole := answer.Choices[0]
			streamed := put(t, ask(t, f, http.MethodPost, chats, `{`+hi+`,`+c.fields+`,"stream":true}`).Body.String())
			for name, got := range map[string]saidChoice{"whole": whole, "streamed": streamed} {
				var calls [][2]string
				ids := map[string]bool{}
				for _, call := range got.Message.ToolCalls {
					calls = append(calls, [2]string{call.Function.Name, call.Function.Arguments})
					if ids[call.ID] || call.ID == "" || call.Type != "function" || call.Index != nil {
						t.Errorf("%s, %s: call %+v", c.name, name, call)
					}
					ids[call.ID] = true
				}
				if old := got.Message.FunctionCall; old != nil {
					calls = append(calls, [2]string{old.Name, old.Arguments})
				}
				if diff := cmp.Diff(c.calls, calls); diff != "" || *orEmpty(got.Message.Content) != c.content || *got.FinishReason != c.reason {
					t.Errorf("%s, %s: %+v, %q\n%s", c.name, name, got.Message, *got.FinishReason, diff)
				}
			}
			if whole.Message.Content != nil && c.content == "" {
				t.Errorf("%s: the content is not null", c.name)
			}
		}
	}
}

// A stream of calls goes on after each of its events as it would have.
func TestToolCallsResume(t *testing.T) {
	for _, choice := range []string{"", `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`} {
		synctest.Test(t, func(t *testing.T) {
			body := `{` + hi + `,` + someTools + choice + `,"stream":true,"resumable_for":"60s"}`
			f := &fake{words: strings.SplitAfter("Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a b\"]}}\n</tool_call>", " "), calls: "hermes", held: "\n"}
			events := strings.SplitAfter(askAgain(t, f, chats, body, "").Body.String(), "\n\n")
			events = events[:len(events)-1]
			if len(events) < 6 {
				t.Fatalf("%q", events)
			}
			for i, event := range events[:len(events)-1] {
				id, _, _ := strings.Cut(strings.TrimPrefix(event, "id: "), "\n")
				if got, want := askAgain(t, f, chats, body, id).Body.String(), strings.Join(events[i+1:], ""); got != want {
					t.Errorf("after %s:\ngot  %s\nwant %s", id, got, want)
				}
			}
		})
	}
}

// The backend's names of tools become those of the request.
func TestNamesOfTools(t *testing.T) {
	for _, c := range []struct{ fields, field, want string }{
		{someTools, "conversation.tools[1].function.parameters", "tools[1].function.parameters"},
		{someTools, "conversation.tool_choice", "tool_choice"},
		{`"functions":[{"name":"f"}]`, "conversation.tools[0].function.parameters", "functions[0].parameters"},
		{`"functions":[{"name":"f"}]`, "conversation.tool_choice", "function_call"},
	} {
		w := ask(t, &fake{refuse: rpc.InvalidArgument(c.field, "is wrong")}, http.MethodPost, chats, `{`+hi+`,`+c.fields+`}`)
		if e := errorOf(t, w.Body.String()); e.Param != c.want {
			t.Errorf("%s: %+v, want %s", c.field, e, c.want)
		}
	}
}
