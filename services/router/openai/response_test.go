package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// What requests for responses become.
func TestResponsesTranslate(t *testing.T) {
	const (
		user = `conversation{messages{role:"user" content:"hi"}}`
		call = `{fields{key:"id" value{string_value:"%s"}} fields{key:"type" value{string_value:"function"}} fields{key:"function" value{struct_value{fields{key:"name" value{string_value:"%s"}} fields{key:"arguments" value{string_value:"%s"}}}}}}`
	)
	for _, c := range []struct{ name, body, want string }{
		{"text", `{"input":"hi"}`, `sampling{} ` + user},
		{"instructions", `{"instructions":"Be brief.","input":"hi"}`, `sampling{} conversation{messages{role:"system" content:"Be brief."} messages{role:"user" content:"hi"}}`},
		{"no instructions", `{"instructions":null,"input":"hi"}`, `sampling{} ` + user},
		{"sampling", `{"input":"hi","model":"m","temperature":0,"top_p":0.5,"max_output_tokens":7,"seed":3,"stop":"x","top_k":4}`,
			`model:"m" sampling{temperature:0 top_p:0.5 seed:3 top_k:4} max_tokens:7 stop:"x" ` + user},
		{"what means nothing", `{"input":"hi","store":true,"user":"u","reasoning":{"effort":"high"},"safety_identifier":"s","prompt_cache_key":"k","metadata":{"a":"b"},"max_tool_calls":2,
			"parallel_tool_calls":false,"background":false,"previous_response_id":null,"conversation":null,"tools":[],"tool_choice":"auto","truncation":"disabled","stream_options":{"include_obfuscation":true},
			"include":["reasoning.encrypted_content","file_search_call.results"],"text":{"format":{"type":"text"},"verbosity":"low"},"access_programs":{"cyber":"standard"},"context_management":[]}`, `sampling{} ` + user},
		{"class", `{"input":"hi","service_tier":"fast"}`, `sampling{} slo{class:"interactive"} ` + user},
		{"an object", `{"input":"hi","text":{"format":{"type":"json_object"}}}`, `sampling{} structured_output{json_object:true} ` + user},
		{"a schema", `{"input":"hi","text":{"format":{"type":"json_schema","name":"n","strict":true,"description":"d","schema":{"b":1,"a":2}}}}`,
			`sampling{} structured_output{json_schema:"{\"b\":1,\"a\":2}"} ` + user},
		{"an expression", `{"input":"hi","guided_regex":"a+"}`, `sampling{} structured_output{regex:"a+"} ` + user},
		{"log probabilities", `{"input":"hi","include":["message.output_text.logprobs"]}`, `sampling{} logprobs:0 ` + user},
		{"and alternatives", `{"input":"hi","include":["message.output_text.logprobs"],"top_logprobs":3}`, `sampling{} logprobs:3 ` + user},
		{"variables of the template", `{"input":"hi","chat_template_kwargs":{"x":true}}`,
			`sampling{} conversation{messages{role:"user" content:"hi"} template_arguments{fields{key:"x" value{bool_value:true}}}}`},
		{"messages", `{"input":[{"role":"developer","content":"a"},{"type":"message","role":"system","content":"b"},{"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]},
			{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"e","annotations":[],"logprobs":[]},{"type":"refusal","refusal":"f"}]}]}`,
			`sampling{} conversation{messages{role:"system" content:"a"} messages{role:"system" content:"b"} messages{role:"user" content:"c\nd"} messages{role:"assistant" content:"e\nf"}}`},
		{"calls are of the turn that made them", `{"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\":1}"},{"type":"function_call","call_id":"2","name":"g","arguments":""},
			{"type":"function_call_output","call_id":"1","output":"one"},{"type":"function_call_output","call_id":"2","name":"g","output":[{"type":"input_text","text":"two"}]},{"type":"function_call","call_id":"3","name":"h","arguments":"{}"}]}`,
			`sampling{} conversation{messages{role:"user" content:"a"} messages{role:"assistant" content:"b" tool_calls` + fmt.Sprintf(call, "1", "f", `{\"x\":1}`) + ` tool_calls` + fmt.Sprintf(call, "2", "g", "{}") + `}
			messages{role:"tool" tool_call_id:"1" content:"one"} messages{role:"tool" tool_call_id:"2" name:"g" content:"two"} messages{role:"assistant" tool_calls` + fmt.Sprintf(call, "3", "h", "{}") + ` no_content:true}}`},
	} {
		f := &fake{words: []string{"a"}}
		if w := ask(t, f, http.MethodPost, responses, c.body); w.Code != http.StatusOK || w.Header().Get("X-Tandem-Ignored") != "" {
			t.Errorf("%s: %d %v %s", c.name, w.Code, w.Header(), w.Body)
			continue
		}
		want := new(inferencev1.GenerateRequest)
		if err := prototext.Unmarshal([]byte(c.want), want); err != nil {
			t.Fatal(err)
		}
		if got := f.only(t); !proto.Equal(got, want) {
			t.Errorf("%s: got  %v\nwant %v", c.name, got, want)
		}
	}
}

// What is refused, and by which name.
func TestResponsesRefuse(t *testing.T) {
	for _, c := range []struct {
		name, body, param, message string
		status                     int
	}{
		{"no input", `{}`, "input", "missing", 400},
		{"a number", `{"input":1}`, "input", "a string or an array", 400},
		{"no items", `{"input":[]}`, "input", "empty", 400},
		{"a text among items", `{"input":["hi"]}`, "input[0]", "an object", 400},
		{"no type", `{"input":[{}]}`, "input[0].type", "missing", 400},
		{"role", `{"input":[{"role":"tool","content":""}]}`, "input[0].role", `"tool"`, 400},
		{"no content", `{"input":[{"role":"user"}]}`, "input[0].content", "missing", 400},
		{"image", `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, "input[0].content[0].type", `"input_image"`, 400},
		{"no text", `{"input":[{"role":"user","content":[{"type":"input_text"}]}]}`, "input[0].content[0].text", "missing", 400},
		{"reasoning", `{"input":[{"type":"reasoning","summary":[]}]}`, "input[0].type", `"reasoning"`, 400},
		{"call without a name", `{"input":[{"type":"function_call","call_id":"1","arguments":"{}"}]}`, "input[0].name", "missing", 400},
		{"call without an id", `{"input":[{"type":"function_call","name":"f","arguments":"{}"}]}`, "input[0].call_id", "missing", 400},
		{"arguments", `{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":[1]}]}`, "input[0].arguments", "a string or an object", 400},
		{"output of nothing", `{"input":[{"type":"function_call_output","output":"x"}]}`, "input[0].call_id", "missing", 400},
		{"no output", `{"input":[{"type":"function_call_output","call_id":"1"}]}`, "input[0].output", "missing", 400},
		{"an item that is not kept", `{"input":[{"type":"item_reference","id":"msg_1"}]}`, "input[0].id", "'msg_1' not found", 404},
		{"an item that is not kept, in short", `{"input":[{"id":"msg_1"}]}`, "input[0].id", "'msg_1' not found", 404},
		{"a response that is not kept", `{"input":"hi","previous_response_id":"resp_1"}`, "previous_response_id", "'resp_1' not found", 400},
		{"a conversation", `{"input":"hi","conversation":"conv_1"}`, "conversation", "'conv_1' not found", 404},
		{"a conversation, as an object", `{"input":"hi","conversation":{"id":"conv_1"}}`, "conversation", "'conv_1' not found", 404},
		{"sound", `{"input":"hi","modalities":["text","audio"]}`, "modalities", "only", 400},
		{"no new message", `{"input":"hi","add_generation_prompt":false}`, "add_generation_prompt", "cannot be false", 400},
		{"background", `{"input":"hi","background":true}`, "background", "not supported", 400},
		{"prompt", `{"input":"hi","prompt":{"id":"x"}}`, "prompt", "not supported", 400},
		{"compaction", `{"input":"hi","context_management":[{"type":"compaction"}]}`, "context_management", "not supported", 400},
		{"resumable", `{"input":"hi","stream":true,"resumable_for":"60s"}`, "resumable_for", "not supported", 400},
		{"two answers", `{"input":"hi","n":2}`, "n", "one answer", 400},
		{"chat's most", `{"input":"hi","max_tokens":2}`, "max_tokens", "max_output_tokens", 400},
		{"chat's messages", `{"input":"hi",` + hi + `}`, "messages", "input", 400},
		{"chat's form", `{"input":"hi","response_format":{"type":"json_object"}}`, "response_format", "text.format", 400},
		{"most", `{"input":"hi","max_output_tokens":-1}`, "max_output_tokens", "outside", 400},
		{"form", `{"input":"hi","text":{"format":{"type":"yaml"}}}`, "text.format", "yaml", 400},
		{"form without a schema", `{"input":"hi","text":{"format":{"type":"json_schema","name":"n"}}}`, "text.format.schema", "missing", 400},
		{"form without a name", `{"input":"hi","text":{"format":{"type":"json_schema","schema":{}}}}`, "text.format.name", "missing", 400},
		{"two forms", `{"input":"hi","text":{"format":{"type":"json_object"}},"guided_regex":"a"}`, "guided_regex", "text.format", 400},
		{"text", `{"input":"hi","text":"x"}`, "text", "an object", 400},
		{"include", `{"input":"hi","include":["everything"]}`, "include[0]", `"everything"`, 400},
		{"alternatives alone", `{"input":"hi","top_logprobs":1}`, "top_logprobs", "include", 400},
		{"truncation", `{"input":"hi","truncation":"middle"}`, "truncation", `"middle"`, 400},
		{"metadata", `{"input":"hi","metadata":{"a":1}}`, "metadata", "strings", 400},
		{"a long value", `{"input":"hi","metadata":{"a":"` + strings.Repeat("x", 513) + `"}}`, "metadata", "512", 400},
		{"much metadata", `{"input":"hi","metadata":{"a":"","b":"","c":"","d":"","e":"","f":"","g":"","h":"","i":"","j":"","k":"","l":"","m":"","n":"","o":"","p":"","q":""}}`, "metadata", "17 members", 400},
	} {
		f := new(fake)
		w := ask(t, f, http.MethodPost, responses, c.body)
		if e := errorOf(t, w.Body.String()); w.Code != c.status || e.Param != c.param || !strings.Contains(e.Message, c.message) || e.Type != "invalid_request_error" {
			t.Errorf("%s: %d %+v, want %q: %q", c.name, w.Code, e, c.param, c.message)
		}
		if len(f.asked) != 0 {
			t.Errorf("%s: it reached the backend", c.name)
		}
	}
}

// The backend's names of fields become those of the request.
func TestResponsesNamesOfFields(t *testing.T) {
	const items = `"instructions":"a","input":[{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"d"}]`
	for _, c := range []struct{ body, field, want string }{
		{`"input":"a"`, "sampling.top_p", "top_p"},
		{`"input":"a","max_output_tokens":5`, "max_tokens", "max_output_tokens"},
		{`"input":"a"`, "logprobs", "top_logprobs"},
		{`"input":"a"`, "prompt", "input"},
		{`"input":"a"`, "conversation", "input"},
		{`"input":"a"`, "conversation.messages[0].content", "input"},
		{`"input":"a"`, "conversation.template_arguments.x", "chat_template_kwargs.x"},
		{`"input":"a","text":{"format":{"type":"json_object"}}`, "structured_output.json_object", "text.format"},
		{items, "conversation.messages[0].content", "instructions"},
		{items, "conversation.messages[1].content", "input[0].content"},
		{items, "conversation.messages[2].tool_calls[0].function", "input[1]"},
		{items, "conversation.messages[3].tool_call_id", "input[3]"},
	} {
		w := ask(t, &fake{refuse: rpc.InvalidArgument(c.field, "is wrong")}, http.MethodPost, responses, `{`+c.body+`}`)
		if e := errorOf(t, w.Body.String()); e.Param != c.want || e.Message != c.want+": is wrong" {
			t.Errorf("%s: %+v, want %q", c.field, e, c.want)
		}
	}
}

// sse is a stream as its client reads it.
type sse struct {
	kind string
	data map[string]any
}

func readEvents(t *testing.T, body string) (out []sse) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		head, data, ok := strings.Cut(event, "\ndata: ")
		e := sse{kind: strings.TrimPrefix(head, "event: ")}
		if err := json.Unmarshal([]byte(data), &e.data); !ok || err != nil || e.data["type"] != e.kind || e.data["sequence_number"] != float64(len(out)) {
			t.Fatalf("event %d: %v: %s", len(out), err, event)
		}
		out = append(out, e)
	}
	return out
}

// What a stream says piece by piece is what it says at its end, and what an answer that is sent as
// a whole says.
func TestResponseStreamsAddUp(t *testing.T) {
	for _, c := range []struct {
		name, extra, last string
		words             []string
		held              string
		logprobs          []*inferencev1.TokenLogprobs
	}{
		{"texts", "", "response.completed", []string{"Once", "", " <&>\n"}, ".", nil},
		{"log probabilities", `,"include":["message.output_text.logprobs"],"top_logprobs":1`, "response.completed",
			[]string{"é", ""}, "b", []*inferencev1.TokenLogprobs{likely("é", -0.5, "x"), likely("\xe2", -1, "y")}},
		{"no text", "", "response.completed", nil, "", nil},
		{"no tokens", `,"max_output_tokens":0`, "response.incomplete", nil, "", nil},
	} {
		w := ask(t, &fake{words: c.words, held: c.held, logprobs: c.logprobs}, http.MethodPost, responses, `{"input":"hi"`+c.extra+`}`)
		var want map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		events := readEvents(t, ask(t, &fake{words: c.words, held: c.held, logprobs: c.logprobs}, http.MethodPost, responses, `{"input":"hi","stream":true`+c.extra+`}`).Body.String())
		var kinds []string
		text, likelihoods := "", []any{}
		for _, e := range events {
			if e.kind == "response.output_text.delta" {
				text += e.data["delta"].(string)
				likelihoods = append(likelihoods, e.data["logprobs"].([]any)...)
				continue
			}
			kinds = append(kinds, e.kind)
		}
		if got := strings.Join(kinds, " "); got != "response.created response.in_progress response.output_item.added response.content_part.added "+
			"response.output_text.done response.content_part.done response.output_item.done "+c.last {
			t.Errorf("%s: %s", c.name, got)
		}
		final := events[len(events)-1].data["response"].(map[string]any)
		for _, response := range []map[string]any{final, want} {
			for _, at := range []string{"created_at", "completed_at"} {
				delete(response, at)
			}
		}
		part := want["output"].([]any)[0].(map[string]any)["content"].([]any)[0].(map[string]any)
		if fmt.Sprint(final) != fmt.Sprint(want) || part["text"] != text || fmt.Sprint(part["logprobs"]) != fmt.Sprint(likelihoods) {
			t.Errorf("%s: streamed %q %v %v\nwhole %v", c.name, text, likelihoods, final, want)
		}
	}
}

// A response that fails when its stream has begun says so with its last event.
func TestResponseStreamsFail(t *testing.T) {
	for err, code := range map[error]string{
		rpc.Error(codes.DataLoss, "KV_LOST", "a block is lost", 0):      "server_error",
		rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "too much", 0): "rate_limit_exceeded",
		errTest: "server_error",
	} {
		w := ask(t, &fake{words: []string{"a"}, fail: err}, http.MethodPost, responses, `{"input":"hi","stream":true}`)
		events := readEvents(t, w.Body.String())
		last := events[len(events)-1]
		response, _ := last.data["response"].(map[string]any)
		problem, _ := response["error"].(map[string]any)
		if w.Code != http.StatusOK || last.kind != "response.failed" || response["status"] != "failed" || problem["code"] != code || problem["message"] == "" {
			t.Errorf("%v: %d %v", err, w.Code, last)
		}
		// What came before it failed is there, and counted.
		output, err := json.Marshal(response["output"])
		if err != nil {
			t.Fatal(err)
		}
		usage, _ := response["usage"].(map[string]any)
		if got := string(output); !strings.Contains(got, `"status":"incomplete"`) || !strings.Contains(got, `"text":"a"`) || usage["input_tokens"] != 5.0 || usage["output_tokens"] != 1.0 {
			t.Errorf("output %s, usage %v", got, usage)
		}
	}
}

// What a response repeats of its request is what was asked.
func TestResponsesSayWhatWasAsked(t *testing.T) {
	const asked = `"instructions":"Be brief.","max_output_tokens":9,"max_tool_calls":2,"metadata":{"a":"b"},"parallel_tool_calls":false,"temperature":0.5,"top_p":0.25,"top_logprobs":0,"truncation":"auto","text":{"format":{"type":"json_schema","name":"n","schema":{"x":1}},"verbosity":"low"}`
	var want, got map[string]any
	if err := json.Unmarshal([]byte(`{`+asked+`,"store":false,"background":false,"service_tier":"flex","previous_response_id":null,"model":"real","status":"completed","object":"response","id":"resp_id-1"}`), &want); err != nil {
		t.Fatal(err)
	}
	w := ask(t, &fake{words: []string{"a"}}, http.MethodPost, responses, `{"input":"hi","store":true,"service_tier":"flex",`+asked+`}`)
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for name, value := range want {
		if fmt.Sprint(got[name]) != fmt.Sprint(value) {
			t.Errorf("%s: %v, want %v", name, got[name], value)
		}
	}
}

// short has a context for so many messages.
type short struct {
	fake
	most int
}

func (s *short) Fits(_ context.Context, q *inferencev1.GenerateRequest) bool {
	return len(q.GetConversation().GetMessages()) <= s.most
}

func (s *short) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (openai.Plan, error) {
	if n := len(q.GetConversation().GetMessages()); n > s.most {
		return openai.Plan{}, rpc.ContextLength("conversation", "This model's maximum context length is short")
	}
	return s.fake.Plan(ctx, q)
}

func (s *short) Generate(ctx context.Context, from *serving.Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	if _, err := s.Plan(ctx, q); err != nil {
		return err
	}
	return s.fake.Generate(ctx, from, q, send)
}

// A conversation that is too long loses its oldest turns, as few as it takes.
func TestResponsesTruncate(t *testing.T) {
	const items = `[{"role":"system","content":"S"},{"role":"user","content":"1"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"},
		{"role":"user","content":"2"},{"role":"assistant","content":"a"},{"role":"user","content":"3"}]`
	for _, c := range []struct {
		truncation string
		most       int
		want       string // what its messages say; "": it is refused
	}{
		{"auto", 8, "I S 1  o 2 a 3"},
		{"auto", 7, "I S 2 a 3"},
		{"auto", 5, "I S 2 a 3"},
		{"auto", 4, "I S 3"},
		{"auto", 3, "I S 3"},
		{"auto", 2, ""},
		{"disabled", 8, "I S 1  o 2 a 3"},
		{"disabled", 7, ""},
	} {
		s := &short{most: c.most}
		w := ask(t, s, http.MethodPost, responses, `{"instructions":"I","truncation":"`+c.truncation+`","input":`+items+`}`)
		counted := ask(t, &short{most: c.most}, http.MethodPost, responses+"/input_tokens", `{"instructions":"I","truncation":"`+c.truncation+`","input":`+items+`}`)
		if counted.Code != w.Code {
			t.Errorf("%s, %d: counting its tokens gives %d, the response %d", c.truncation, c.most, counted.Code, w.Code)
		}
		if c.want == "" {
			if e := errorOf(t, w.Body.String()); w.Code != http.StatusBadRequest || e.Code != "context_length_exceeded" || e.Param != "input" {
				t.Errorf("%s, %d: %d %+v", c.truncation, c.most, w.Code, e)
			}
			continue
		}
		var said []string
		for _, m := range s.only(t).GetConversation().GetMessages() {
			said = append(said, m.GetContent())
		}
		if got := strings.Join(said, " "); w.Code != http.StatusOK || got != c.want {
			t.Errorf("%s, %d: %d %q", c.truncation, c.most, w.Code, got)
		}
	}
}

// No response is kept: that of a moment ago is as unknown as any other.
func TestResponsesAreNotKept(t *testing.T) {
	h := handler(t, &fake{words: []string{"a"}})
	send := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w
	}
	var made struct{ ID string }
	if err := json.Unmarshal(send(http.MethodPost, responses, `{"input":"hi","store":true}`).Body.Bytes(), &made); err != nil || !strings.HasPrefix(made.ID, "resp_") {
		t.Fatalf("%v %q", err, made.ID)
	}
	for _, id := range []string{made.ID, "resp_677efb5139a88190b512bc3fef8e535d", "a%2Fb"} {
		for _, c := range []struct{ method, below string }{{http.MethodGet, ""}, {http.MethodDelete, ""}, {http.MethodPost, "/cancel"}, {http.MethodGet, "/input_items?limit=1"}} {
			w := send(c.method, responses+"/"+id+c.below, "")
			if e := errorOf(t, w.Body.String()); w.Code != http.StatusNotFound || e.Type != "invalid_request_error" || !strings.HasPrefix(e.Message, "Response with id '") || e.Param != "" {
				t.Errorf("%s %s%s: %d %+v", c.method, id, c.below, w.Code, e)
			}
		}
		if w := send(http.MethodPut, responses+"/"+id, ""); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("PUT: %d", w.Code)
		}
	}
	for _, below := range []string{"/" + made.ID + "/nothing", "/compact", "/"} {
		if w := send(http.MethodPost, responses+below, ""); w.Code != http.StatusNotFound || errorOf(t, w.Body.String()).Code != "unknown_url" {
			t.Errorf("%s: %d %s", below, w.Code, w.Body)
		}
	}
}

// How long a prompt is can be asked without an answer.
func TestInputTokens(t *testing.T) {
	f := &fake{}
	w := ask(t, f, http.MethodPost, responses+"/input_tokens", `{"input":"hi"}`)
	if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != `{"object":"response.input_tokens","input_tokens":5}` || len(f.asked) != 0 {
		t.Errorf("%d %s, %d asked", w.Code, w.Body, len(f.asked))
	}
	if w := ask(t, f, http.MethodPost, responses+"/input_tokens", `{}`); w.Code != http.StatusBadRequest || errorOf(t, w.Body.String()).Param != "input" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An answer that does not fit into the memory for answers fails, also in the middle of a stream,
// whose end would have all of it.
func TestResponsesNeedMemory(t *testing.T) {
	h, err := build(&fake{words: []string{"a", strings.Repeat("x", 1<<16)}}, openai.Config{MaxHeldBytes: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	send := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, responses, strings.NewReader(body)))
		return w
	}
	if w := send(`{"input":"hi"}`); w.Code != http.StatusBadRequest || errorOf(t, w.Body.String()).Param != "max_output_tokens" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	events := readEvents(t, send(`{"input":"hi","stream":true}`).Body.String())
	if last := events[len(events)-1]; last.kind != "response.failed" {
		t.Errorf("%v", last)
	}
}
