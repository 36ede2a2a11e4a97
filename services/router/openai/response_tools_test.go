package openai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// flatTools are those of someTools as responses have them.
const flatTools = `"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true},{"type":"function","name":"g","strict":null,"allowed_callers":["direct"]}]`

// What the backend is told of tools is what it is told for a chat.
func TestResponsesTranslateTools(t *testing.T) {
	for _, c := range []struct{ fields, want string }{
		{flatTools, ourTools + ` tool_choice{}`},
		{flatTools + `,"tool_choice":"auto","parallel_tool_calls":true`, ourTools + ` tool_choice{}`},
		{flatTools + `,"tool_choice":"none"`, ``},
		{flatTools + `,"tool_choice":"required","parallel_tool_calls":false`, ourTools + ` tool_choice{required:true single:true}`},
		{flatTools + `,"tool_choice":{"type":"function","name":"g"}`, ourTools + ` tool_choice{required:true single:true functions:"g"}`},
		{flatTools + `,"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}`, ourTools + ` tool_choice{required:true functions:"f"}`},
		{flatTools + `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`, ourTools + ` tool_choice{functions:"f"}`},
	} {
		f := &fake{words: []string{"a"}}
		w := ask(t, f, http.MethodPost, responses, `{"input":"hi",`+c.fields+`}`)
		want := new(inferencev1.GenerateRequest)
		if err := prototext.Unmarshal([]byte(`sampling{} conversation{messages{role:"user" content:"hi"} `+c.want+`}`), want); err != nil {
			t.Fatal(err)
		}
		if w.Code != http.StatusOK || !proto.Equal(f.only(t), want) {
			t.Errorf("%s: %d %s\ngot  %v\nwant %v", c.fields, w.Code, w.Body, f.asked, want)
		}
		var asked, said struct {
			Tools    any
			Choice   any  `json:"tool_choice"`
			Parallel bool `json:"parallel_tool_calls"`
		}
		asked.Choice, asked.Parallel = "auto", true
		if err := json.Unmarshal([]byte(`{`+c.fields+`}`), &asked); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || !cmp.Equal(asked, said) {
			t.Errorf("the answer says %+v, %v; asked was %+v", said, err, asked)
		}
	}
}

func TestResponsesRefuseTools(t *testing.T) {
	for _, c := range []struct{ fields, param, message string }{
		{`"tools":[{}]`, "tools[0].type", "missing"},
		{`"tools":[{"type":"web_search"}]`, "tools[0].type", "functions only"},
		{`"tools":[{"type":"function"}]`, "tools[0].name", "missing"},
		{`"tools":[{"type":"function","name":"f","async":true}]`, "tools[0].async", "not supported"},
		{`"tools":[{"type":"function","name":"f","allowed_callers":["programmatic"]}]`, "tools[0].allowed_callers", "direct"},
		{`"tools":[{"type":"function","name":"f","parameters":{"x":[` + strings.Repeat("[],", 1<<14) + `0]}}]`, "tools[0]", "16384 values"},
		{`"tool_choice":"required"`, "tool_choice", "needs tools"},
		{flatTools + `,"tool_choice":"any"`, "tool_choice", `"required" or an object`},
		{flatTools + `,"tool_choice":{"type":"function"}`, "tool_choice.name", "missing"},
		{flatTools + `,"tool_choice":{"type":"function","name":"h"}`, "tool_choice", "none of the tools"},
		{flatTools + `,"tool_choice":{"type":"mcp"}`, "tool_choice.type", "allowed_tools"},
		{flatTools + `,"tool_choice":{"type":"allowed_tools","mode":"x","tools":[]}`, "tool_choice.mode", `"auto" or "required"`},
		{flatTools + `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"mcp"}]}`, "tool_choice.tools[0].type", `"mcp"`},
		{flatTools + `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]}`, "tool_choice.tools", "missing or empty"},
	} {
		f := new(fake)
		w := ask(t, f, http.MethodPost, responses, `{"input":"hi",`+c.fields+`}`)
		if e := errorOf(t, w.Body.String()); w.Code != http.StatusBadRequest || e.Param != c.param || !strings.Contains(e.Message, c.message) || len(f.asked) > 0 {
			t.Errorf("%.200s: %d %+v, want %q: %q", c.fields, w.Code, e, c.param, c.message)
		}
	}
	for field, want := range map[string]string{"conversation.tools[1].function.parameters": "tools[1].parameters", "conversation.tool_choice": "tool_choice"} {
		w := ask(t, &fake{refuse: rpc.InvalidArgument(field, "is wrong")}, http.MethodPost, responses, `{"input":"hi",`+flatTools+`}`)
		if e := errorOf(t, w.Body.String()); e.Param != want {
			t.Errorf("%s: %+v, want %s", field, e, want)
		}
	}
}

// outputItem is an item as clients read it.
type outputItem struct {
	ID, Type, Status, Name, Arguments string
	CallID                            string `json:"call_id"`
	Content                           []struct{ Text string }
}

// allowsFlatF allows one of flatTools.
const allowsFlatF = `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`

// Calls are items of their own, between messages, whole and streamed.
func TestResponsesHaveCalls(t *testing.T) {
	const text, call = "I see.", "<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>"
	for _, c := range []struct {
		name, format, fields, text string
		want                       []string // items: the text of a message, or a call
	}{
		{"a call", "hermes", "", fmt.Sprintf(call, "f", `{"x": 1}`), []string{`f({"x": 1})`}},
		{"text and calls", "hermes", "", text + "\n" + fmt.Sprintf(call, "f", `{"x": [1, "é"]}`) + "\n" + fmt.Sprintf(call, "g", `{}`), []string{text, `f({"x": [1, "é"]})`, `g({})`}},
		{"no call", "hermes", "", text, []string{text}},
		{"an unknown function", "hermes", "", fmt.Sprintf(call, "h", `{}`), []string{fmt.Sprintf(call, "h", `{}`)}},
		{"cut", "hermes", "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1", []string{`f({"x": 1) incomplete`}},
		{"one at most", "hermes", `,"parallel_tool_calls":false`, fmt.Sprintf(call, "f", `{}`) + fmt.Sprintf(call, "g", `{}`), []string{`f({})`, fmt.Sprintf(call, "g", `{}`)}},
		{"allowed", "llama3_json", allowsFlatF, `{"name":"f","parameters":{}}`, []string{`f({})`}},
		{"not allowed", "llama3_json", allowsFlatF, `{"name":"g","parameters":{}}`, []string{`{"name":"g","parameters":{}}`}},
	} {
		f := &fake{words: strings.Split(c.text, ""), calls: c.format}
		var whole struct{ Output []outputItem }
		if w := ask(t, f, http.MethodPost, responses, `{"input":"hi",`+flatTools+c.fields+`}`); json.Unmarshal(w.Body.Bytes(), &whole) != nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		body := ask(t, f, http.MethodPost, responses, `{"input":"hi","stream":true,`+flatTools+c.fields+`}`).Body.String()
		var streamed, last []outputItem
		for _, e := range readEvents(t, body) {
			var event struct {
				Index     int `json:"output_index"`
				Item      outputItem
				ItemID    string `json:"item_id"`
				Delta     string
				Name      string
				Arguments string
				Response  struct{ Output []outputItem }
			}
			data, err := json.Marshal(e.data)
			if err == nil {
				err = json.Unmarshal(data, &event)
			}
			if err != nil {
				t.Fatal(err)
			}
			switch e.kind {
			case "response.output_item.added":
				if event.Index != len(streamed) || event.Item.Status != "in_progress" || event.Item.Arguments != "" {
					t.Errorf("%s: added %+v", c.name, event)
				}
				streamed = append(streamed, event.Item)
				continue
			case "response.created", "response.in_progress":
				continue
			case "response.completed":
				last = event.Response.Output
				continue
			}
			item := &streamed[event.Index]
			if event.ItemID != "" && event.ItemID != item.ID {
				t.Errorf("%s: %s of %s, not of %s", c.name, e.kind, event.ItemID, item.ID)
			}
			switch e.kind {
			case "response.content_part.added":
				item.Content = make([]struct{ Text string }, 1)
			case "response.output_text.delta":
				item.Content[0].Text += event.Delta
			case "response.function_call_arguments.delta":
				item.Arguments += event.Delta
			case "response.function_call_arguments.done":
				if item.Arguments != event.Arguments || item.Name != event.Name || item.Name == "" {
					t.Errorf("%s: %s(%s), in the end %s(%s)", c.name, item.Name, item.Arguments, event.Name, event.Arguments)
				}
			case "response.output_item.done":
				item.Status = event.Item.Status
				if diff := cmp.Diff(*item, event.Item); diff != "" {
					t.Errorf("%s: %s", c.name, diff)
				}
			}
		}
		for how, items := range map[string][]outputItem{"whole": whole.Output, "streamed": streamed, "at the end": last} {
			var got []string
			ids := map[string]bool{}
			for _, item := range items {
				said := ""
				if item.Type == "function_call" {
					said = item.Name + "(" + item.Arguments + ")"
				} else {
					said = item.Content[0].Text
				}
				if item.Status != "completed" {
					said += " " + item.Status
				}
				got = append(got, said)
				if item.ID == "" || ids[item.ID] || item.Type == "function_call" && (item.CallID == "" || ids[item.CallID]) {
					t.Errorf("%s, %s: ids of %+v", c.name, how, item)
				}
				ids[item.ID], ids[item.CallID] = true, true
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s, %s: %s\n%s", c.name, how, diff, body)
			}
		}
	}
}
