package openai_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
)

// described is what openapi.json says, as far as tests look at it.
type described struct {
	Paths map[string]map[string]struct {
		Responses map[string]struct {
			Content map[string]struct{ Schema json.RawMessage }
		}
	}
	Components struct {
		Schemas map[string]struct {
			Required   []string
			Properties map[string]struct{ Examples []json.RawMessage }
			Refused    []string `json:"x-tandem-refused"`
			Ignored    []string `json:"x-tandem-ignored"`
		}
	}
	compiler *jsonschema.Compiler
}

func description(t *testing.T) *described {
	t.Helper()
	d := &described{compiler: jsonschema.NewCompiler()}
	if err := json.Unmarshal(openai.OpenAPI(), d); err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(openai.OpenAPI())))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.compiler.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	return d
}

// check holds JSON against a schema, which a pointer into the document names.
func (d *described) check(t *testing.T, pointer, text string) {
	t.Helper()
	schema, err := d.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%s does not describe %s: %v", pointer, text, err)
	}
}

var requests = map[string]string{completions: "CompletionRequest", chats: "ChatCompletionRequest", responses: "ResponseRequest"}

// The description has each field that the parser knows, and no other; each is taken with the
// value that stands there as an example, or refused or ignored as it says.
func TestOpenAPIHasTheFields(t *testing.T) {
	d := description(t)
	for path, request := range requests {
		s := d.Components.Schemas[request]
		names := slices.Concat(slices.Collect(maps.Keys(s.Properties)), s.Refused, s.Ignored)
		slices.Sort(names)
		if want := slices.Sorted(maps.Keys(openai.KnownFields(path))); !slices.Equal(names, want) {
			t.Errorf("%s: described %v\nthe parser knows %v", path, names, want)
		}
		base := map[string]json.RawMessage{}
		for _, name := range s.Required {
			base[name] = s.Properties[name].Examples[0]
		}
		send := func(name, value string) (*httptest.ResponseRecorder, string) {
			body := maps.Clone(base)
			body[name] = json.RawMessage(value)
			switch {
			case name == "top_logprobs" && path == responses:
				body["include"] = json.RawMessage(`["message.output_text.logprobs"]`)
			case name == "top_logprobs":
				body["logprobs"] = json.RawMessage("true")
			}
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			return ask(t, &fake{words: []string{"a"}}, http.MethodPost, path, string(text)), string(text)
		}
		for name, property := range s.Properties {
			w, body := send(name, string(property.Examples[0]))
			if w.Code != http.StatusOK || w.Header().Get("X-Tandem-Ignored") != "" {
				t.Errorf("%s %s: %d %v %s", path, body, w.Code, w.Header(), w.Body)
			}
			d.check(t, "/components/schemas/"+request, body)
		}
		for _, name := range s.Refused {
			if w, body := send(name, `"x"`); w.Code != http.StatusBadRequest && w.Code != http.StatusNotFound || errorOf(t, w.Body.String()).Param != name {
				t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
			}
		}
		for _, name := range s.Ignored {
			if w, body := send(name, `"x"`); w.Code != http.StatusOK || w.Header().Get("X-Tandem-Ignored") != "" {
				t.Errorf("%s %s: %d %v", path, body, w.Code, w.Header())
			}
		}
	}
}

// What is answered is what is described: status, type, and each member of the JSON.
func TestOpenAPIDescribesTheAnswers(t *testing.T) {
	d := description(t)
	likelihoods := []*inferencev1.TokenLogprobs{likely("é", -0.5, "é"), likely("b", -1, "c")}
	many := `{` + hi + `,"n":2,"logprobs":true,"top_logprobs":1,"timing_ms":true`
	some := `{"prompt":["a","b"],"logprobs":1,"timing_ms":true`
	told := `{"input":"hi","instructions":"Be brief.","temperature":0.5,"top_p":0.5,"max_output_tokens":9,"max_tool_calls":1,"metadata":{"a":"b"},"service_tier":"fast","truncation":"auto",
		"text":{"format":{"type":"json_schema","name":"n","schema":{}},"verbosity":"low"},"include":["message.output_text.logprobs"],"top_logprobs":1,"timing_ms":true}`
	usage := `,"stream":true,"stream_options":{"include_usage":true}}`
	calling := &fake{words: strings.SplitAfter("Well. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>", " "), calls: "hermes"}
	refusing := func(code codes.Code) *fake { return &fake{refuse: rpc.Error(code, "REASON", "no", 0)} }
	for _, c := range []struct {
		path, at, body string // at is the path's name in the description
		fake           *fake
		status         int
	}{
		{chats, chats, `{` + hi + `}`, nil, 200},
		{chats, chats, many + `}`, nil, 200},
		{chats, chats, many + usage, nil, 200},
		{chats, chats, `{` + hi + `,"max_tokens":0}`, nil, 200},
		{chats, chats, `{` + hi + `,"stream":true}`, nil, 200},
		{chats, chats, `{` + hi + `,` + someTools + `}`, calling, 200},
		{chats, chats, `{` + hi + `,` + someTools + usage, calling, 200},
		{chats, chats, `{` + hi + `,"functions":[{"name":"f"}]}`, calling, 200},
		{chats, chats, `{` + hi + `,"functions":[{"name":"f"}],"stream":true}`, calling, 200},
		{completions, completions, `{"prompt":"a"}`, nil, 200},
		{completions, completions, some + `}`, nil, 200},
		{completions, completions, some + usage, nil, 200},
		{completions, completions, `{"prompt":"a","stream":true,"echo":true}`, nil, 200},
		{completions, completions, `{"prompt":"a","stream":true}`, &fake{words: []string{"a"}, fail: rpc.Error(codes.DataLoss, "KV_LOST", "a block is lost", 0)}, 200},
		{completions, completions, `{"prompt":`, nil, 400},
		{completions, completions, `{"prompt":"a"}`, &fake{refuse: rpc.ContextLength("max_tokens", "This model's maximum context length is 5 tokens")}, 400},
		{chats, chats, `{` + hi + `}`, refusing(codes.NotFound), 404},
		{chats, chats, `{` + hi + `}`, refusing(codes.ResourceExhausted), 429},
		{chats, chats, `{` + hi + `}`, refusing(codes.Internal), 500},
		{chats, chats, `{` + hi + `}`, refusing(codes.Unavailable), 503},
		{chats, chats, `{` + hi + `}`, refusing(codes.DeadlineExceeded), 504},
		{responses, responses, `{"input":"hi"}`, nil, 200},
		{responses, responses, `{"input":"hi","stream":true}`, nil, 200},
		{responses, responses, `{"input":"hi",` + flatTools + `}`, calling, 200},
		{responses, responses, `{"input":"hi","stream":true,` + flatTools + `}`, calling, 200},
		{responses, responses, told, nil, 200},
		{responses, responses, told[:len(told)-1] + `,"stream":true}`, nil, 200},
		{responses, responses, `{"input":"hi","max_output_tokens":0,"stream":true}`, nil, 200},
		{responses, responses, `{"input":"hi","stream":true}`, &fake{words: []string{"a"}, fail: rpc.Error(codes.DataLoss, "KV_LOST", "a block is lost", 0)}, 200},
		{responses, responses, `{"input":[]}`, nil, 400},
		{responses, responses, `{"input":"hi","conversation":"x"}`, nil, 404},
		{responses, responses, `{"input":"hi"}`, refusing(codes.ResourceExhausted), 429},
		{responses + "/input_tokens", responses + "/input_tokens", `{"input":"hi"}`, nil, 200},
		{responses + "/input_tokens", responses + "/input_tokens", `{"input":"hi"}`, refusing(codes.NotFound), 404},
		{responses + "/resp_1", responses + "/{response}", "", nil, 404},
		{responses + "/resp_1/input_items", responses + "/{response}/input_items", "", nil, 404},
		{"/v1/models", "/v1/models", "", nil, 200},
		{"/v1/models/real", "/v1/models/{model}", "", nil, 200},
		{"/v1/models/none", "/v1/models/{model}", "", nil, 404},
		{"/openapi.json", "/openapi.json", "", nil, 200},
	} {
		if c.fake == nil {
			c.fake = &fake{words: []string{"é", "b"}, held: ".", logprobs: likelihoods}
		}
		method := http.MethodPost
		if c.body == "" {
			method = http.MethodGet
		}
		w := ask(t, c.fake, method, c.path, c.body)
		kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
		if _, known := d.Paths[c.at][strings.ToLower(method)].Responses[fmt.Sprint(w.Code)].Content[kind]; w.Code != c.status || !known {
			t.Errorf("%s %s %s: %d %s, which is not described", method, c.path, c.body, w.Code, kind)
			continue
		}
		escaped := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
		pointer := fmt.Sprintf("/paths/%s/%s/responses/%d/content/%s/schema", escaped.Replace(c.at), strings.ToLower(method), w.Code, escaped.Replace(kind))
		if kind == "application/json" {
			d.check(t, pointer, w.Body.String())
			continue
		}
		events := strings.Split(strings.TrimSuffix(w.Body.String(), "\n\n"), "\n\n")
		for _, event := range events {
			_, data, _ := strings.Cut(event, "data: ")
			switch {
			case data == "[DONE]":
			case strings.HasPrefix(data, `{"error"`):
				d.check(t, "/components/schemas/Error", data)
			default:
				d.check(t, pointer, data)
			}
		}
	}
}

// A member that nobody looks for is ignored, as vLLM does, and named in the answer.
func TestIgnoredMembersAreNamed(t *testing.T) {
	for _, c := range []struct{ name, path, body, want string }{
		{"none", chats, `{` + hi + `,"user":"u","max_tokens":3,"max_completion_tokens":4}`, ""},
		{"misspelt and foreign", chats, `{` + hi + `,"max_token":3,"keep_alive":5}`, "keep_alive, max_token"},
		{"null", chats, `{` + hi + `,"max_token":3,"keep_alive":null}`, "max_token"},
		{"of the other kind", completions, `{"prompt":"a",` + hi + `}`, "messages"},
		{"no header's", completions, `{"prompt":"a","a\r\nb, é":1}`, "a??b???"},
		{"in a stream", completions, `{"prompt":"a","stream":true,"tenant":"t"}`, "tenant"},
		{"in a message", chats, `{"messages":[{"role":"user","content":"a","weight":1,"mood":null},{"role":"assistant","content":"b","refusal":null,"annotations":[],"audio":null,"reasoning_content":"c","reasoning":"d","reasoning_details":[1]},{"role":"user","content":"e","reasoning_content":"f"}]}`,
			"messages[].reasoning_content, messages[].reasoning_details, messages[].weight"},
		{"in parts and calls", chats, `{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},{"role":"assistant","tool_calls":[{"index":1,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`,
			"messages[].content[].cache_control, messages[].tool_calls[].index"},
		{"in a form", chats, `{` + hi + `,"response_format":{"type":"json_schema","schema":{},"json_schema":{"name":"n","strict":true,"description":"d","schema":{"title":"t"},"examples":[1]}}}`,
			"response_format.json_schema.examples"},
		{"in a form of text", chats, `{` + hi + `,"response_format":{"type":"text","x":1}}`, "response_format.x"},
		{"in options", chats, `{` + hi + `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true,"include_obfuscation":false,"chunk":3}}`, "stream_options.chunk"},
		{"in a response", responses, `{"input":[{"type":"message","id":"i","status":"completed","role":"user","content":[{"type":"input_text","text":"a","x":1}],"weight":1},
			{"type":"function_call","id":"i","status":"completed","call_id":"c","name":"f","arguments":"{}","x":1},{"type":"function_call_output","id":"i","status":"completed","call_id":"c","output":"o","y":1}],"text":{"format":{"type":"text","x":1},"verbositty":"low"},"tools":[{"type":"function","name":"f","x":1}]}`,
			"input[].content[].x, input[].weight, input[].x, input[].y, text.format.x, text.verbositty, tools[].x"},
		{"of a tool", chats, `{` + hi + `,"x":1,` + someTools + `}`, "tools[].function.parameters.uniqueItems, x"},
		{"of a function", chats, `{` + hi + `,"functions":[{"name":"f"}]}`, "functions[].parameters.uniqueItems"},
		{"of a tool, in a stream", chats, `{` + hi + `,"stream":true,` + someTools + `}`, "tools[].function.parameters.uniqueItems"},
		{"of a response's tool", responses, `{"input":"hi",` + flatTools + `}`, "tools[].parameters.uniqueItems"},
		{"of a response's tool, in a stream", responses, `{"input":"hi","stream":true,` + flatTools + `}`, "tools[].parameters.uniqueItems"},
	} {
		f := &fake{words: []string{"a"}}
		if strings.HasPrefix(c.name, "of a ") {
			f.ignored = []string{"conversation.tools[].function.parameters.uniqueItems"}
		}
		w := ask(t, f, http.MethodPost, c.path, c.body)
		if got := w.Header().Get("X-Tandem-Ignored"); w.Code != http.StatusOK || got != c.want {
			t.Errorf("%s: %d %q", c.name, w.Code, got)
		}
	}
	var body strings.Builder
	body.WriteString(`{"prompt":"a"`)
	for i := range 1000 {
		fmt.Fprintf(&body, `,"x%03d":0`, i)
	}
	w := ask(t, &fake{words: []string{"a"}}, http.MethodPost, completions, body.String()+"}")
	if got := w.Header().Get("X-Tandem-Ignored"); !strings.HasPrefix(got, "x000, x001, ") || !strings.HasSuffix(got, "x015, ...") {
		t.Errorf("of a thousand: %q", got)
	}
}
