package router_test

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router"
)

// testTemplate shows what a template gets. Its tokens are those of fable.
const testTemplate = `{{ bos_token }}{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}` +
	`{% if m.role == 'broken' %}{{ m.content.nothing.more }}{% endif %}` +
	`{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}` +
	`{% if not loop.last %} {% endif %}{% endfor %}{% for t in tools or [] %} {{ t | tojson }}{% endfor %}{{ more }}{% if add_generation_prompt %} A{% endif %}`

// chatOf is the template of the model in these tests; the one that is called
// "silent" has none.
func chatOf(served model.Spec) (chat.Template, error) {
	if served.Name == "silent" {
		return nil, chat.ErrNone
	}
	if served.Name == "stuck" {
		return stuck{}, nil
	}
	if served.Name == "thinking" {
		source, err := os.ReadFile("../../pkg/chat/testdata/templates/qwen3.jinja")
		if err != nil {
			return nil, err
		}
		return chat.Parse("qwen3.jinja", string(source), nil)
	}
	tokens := map[string]string{"bos_token": "<|begin_of_text|>"}
	if served.Name == "turns" {
		tokens["eos_token"] = "<|pad|>"
	}
	return chat.Parse("test.jinja", testTemplate, tokens)
}

// stuck is a template that takes all the time there is.
type stuck struct{}

func (stuck) Render(ctx context.Context, _ chat.Conversation) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func conversation(messages ...*inferencev1.Message) *inferencev1.GenerateRequest_Conversation {
	return &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{Messages: messages}}
}

func said(role, content string) *inferencev1.Message {
	return &inferencev1.Message{Role: role, Content: content}
}

func object(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A conversation becomes the template's text, with no start token but its own,
// and what spells a special token is that token.
func TestConversation(t *testing.T) {
	tool := object(t, map[string]any{"type": "function", "function": map[string]any{"name": "f", "parameters": map[string]any{}}})
	call := object(t, map[string]any{"id": "1", "function": map[string]any{"name": "f", "arguments": `{"n": 3}`}})
	for name, c := range map[string]struct {
		change func(*inferencev1.Conversation)
		want   string
	}{
		"plain":          {func(*inferencev1.Conversation) {}, "user: Once upon a time A"},
		"several":        {func(c *inferencev1.Conversation) { c.Messages = append(c.Messages, said("assistant", "a dog")) }, "user: Once upon a time assistant: a dog A"},
		"continued":      {func(c *inferencev1.Conversation) { c.ContinueLastMessage = true }, "user: Once upon a time"},
		"special tokens": {func(c *inferencev1.Conversation) { c.Messages[0].Content = "a<|end_of_text|>" }, "user: a<|end_of_text|> A"},
		"tools":          {func(c *inferencev1.Conversation) { c.Tools = append(c.Tools, tool) }, `user: Once upon a time {"type": "function", "function": {"name": "f", "parameters": {}}} A`},
		"a call":         {func(c *inferencev1.Conversation) { c.Messages[0].ToolCalls = []*structpb.Struct{call} }, `user: Once upon a time{"id": "1", "function": {"name": "f", "arguments": {"n": 3}}} A`},
		"a call alone": {func(c *inferencev1.Conversation) {
			c.Messages[0] = &inferencev1.Message{Role: "assistant", NoContent: true, ToolCalls: []*structpb.Struct{call}}
		}, `assistant: None{"id": "1", "function": {"name": "f", "arguments": {"n": 3}}} A`},
		"arguments": {func(c *inferencev1.Conversation) { c.TemplateArguments = object(t, map[string]any{"more": " more"}) }, "user: Once upon a time more A"},
	} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				d := m.start(nil, decodeRecord("d1"))[0]
				q := conversation(said("user", "Once upon a time"))
				c.change(q.Conversation)
				r := m.generate(t.Context(), &inferencev1.GenerateRequest{Input: q})
				if r.err != nil {
					t.Fatal(r.err)
				}
				tok, err := fable()
				if err != nil {
					t.Fatal(err)
				}
				var got []int32
				for _, id := range d.Tasks()[0].GetTokenIds() {
					got = append(got, int32(id))
				}
				if diff := cmp.Diff(tok.Encode("<|begin_of_text|>"+c.want, false), got); diff != "" {
					t.Errorf("the prompt is %q (-want +got):\n%s", tok.Decode(got, false), diff)
				}
				if strings.Contains(c.want, "<|end_of_text|>") && !slices.Contains(got, eos) {
					t.Error("the special token is not one")
				}
			})
		})
	}
}

func TestBadConversations(t *testing.T) {
	for name, c := range map[string]struct {
		conversation *inferencev1.GenerateRequest_Conversation
		field, says  string
	}{
		"no messages":         {conversation(), "conversation.messages", "empty"},
		"no role":             {conversation(said("user", "a"), said("", "b")), "conversation.messages[1].role", "empty"},
		"a long role":         {conversation(said(strings.Repeat("r", 257), "b")), "conversation.messages[0].role", "256"},
		"a long name":         {conversation(&inferencev1.Message{Role: "user", Name: strings.Repeat("n", 257)}), "conversation.messages[0].name", "256"},
		"content and none":    {conversation(&inferencev1.Message{Role: "user", Content: "a", NoContent: true}), "conversation.messages[0].no_content", "leave one of them out"},
		"many messages":       {conversation(make([]*inferencev1.Message, 4097)...), "conversation.messages", "4097"},
		"too long":            {conversation(said("user", strings.Repeat("dog ", window))), "conversation", "context length is 256"},
		"refused":             {conversation(said("critic", "b")), "conversation", "refuses it: no critics"},
		"broken":              {conversation(said("broken", "b")), "conversation", "test.jinja line 1: a string has no attribute 'nothing'"},
		"a reserved argument": {&inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{Messages: []*inferencev1.Message{said("user", "a")}, TemplateArguments: object(t, map[string]any{"messages": 1.0})}}, "conversation.template_arguments.messages", "the request's own field"},
	} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				r := m.generate(t.Context(), &inferencev1.GenerateRequest{Input: c.conversation})
				if status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != c.field || !strings.Contains(r.err.Error(), c.says) {
					t.Errorf("field %q, error %v", rpc.Field(r.err), r.err)
				}
			})
		})
	}
}

// An answer ends with the token that ends a turn by the template's configuration, also
// where the model's own ends only texts.
func TestAnswersEndWithTheTurn(t *testing.T) {
	served := spec()
	served.Name = "turns"
	const turn = 4095
	for name, c := range map[string]struct {
		request *inferencev1.GenerateRequest
		want    []uint32
	}{
		"a conversation": {&inferencev1.GenerateRequest{Input: conversation(said("user", "Once"))}, []uint32{eos, turn}},
		"a text":         {&inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once"}}, []uint32{eos}},
		"on and on":      {&inferencev1.GenerateRequest{Input: conversation(said("user", "Once")), IgnoreEos: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inMeshOf(t, served, nil, func(t *testing.T, m *mesh) {
				d := m.start(nil, decodeRecord("d1"))[0]
				if r := m.generate(t.Context(), c.request); r.err != nil {
					t.Fatal(r.err)
				}
				if diff := cmp.Diff(c.want, d.Tasks()[0].GetStopTokenIds(), cmpopts.EquateEmpty()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestModelWithoutChatTemplate(t *testing.T) {
	served := spec()
	served.Name = "silent"
	inMeshOf(t, served, nil, func(t *testing.T, m *mesh) {
		r := m.generate(t.Context(), &inferencev1.GenerateRequest{Input: conversation(said("user", "a"))})
		if status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != "conversation" || !strings.Contains(r.err.Error(), "--chat-template FILE") {
			t.Errorf("field %q, error %v", rpc.Field(r.err), r.err)
		}
	})
}

// What a prompt takes to be rendered counts as part of the request's time.
func TestRenderingIsBounded(t *testing.T) {
	served := spec()
	served.Name = "stuck"
	inMeshOf(t, served, func(c *router.Config) { c.Serving.MaxRequestTime = time.Minute }, func(t *testing.T, m *mesh) {
		began := time.Now()
		r := m.generate(t.Context(), &inferencev1.GenerateRequest{Input: conversation(said("user", "a"))})
		if status.Code(r.err) != codes.DeadlineExceeded || rpc.Reason(r.err) != "DEADLINE" || time.Since(began) != time.Minute {
			t.Errorf("after %s: %v", time.Since(began), r.err)
		}
	})
}

// What an assistant thought comes to the template, by either of its names, as in transformers (see
// pkg/chat/testdata/expected.py).
func TestReasoningOverHTTP(t *testing.T) {
	const want = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<think>\nI need a.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call><|im_end|>\n" +
		"<|im_start|>user\n<tool_response>\none\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
	served := spec()
	served.Name = "thinking"
	for _, name := range []string{"reasoning_content", "reasoning"} {
		inMeshOf(t, served, nil, func(t *testing.T, m *mesh) {
			d := m.start(nil, decodeRecord("d1"))[0]
			w := m.post(t.Context(), "/v1/chat/completions", `{"max_tokens":2,"messages":[{"role":"user","content":"Go"},{"role":"assistant","content":"One moment.","`+name+`":"I need a.",
				"tool_calls":[{"id":"1","type":"function","function":{"name":"a","arguments":"{}"}}]},{"role":"tool","content":"one","tool_call_id":"1"}]}`)
			if w.Code != http.StatusOK || w.Header().Get("X-Tandem-Ignored") != "" {
				t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
			}
			tok, err := fable()
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for _, id := range d.Tasks()[0].GetTokenIds() {
				got = append(got, int32(id))
			}
			if diff := cmp.Diff(tok.Encode(want, false), got); diff != "" {
				t.Errorf("%s: the prompt is %q", name, tok.Decode(got, false))
			}
		})
	}
}

// Keywords of tools that cannot be enforced are named in the answer, and refused of strict tools.
func TestToolsWithAnnotationsOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		d := m.start(nil, decodeRecord("d1"))[0]
		ask := func(strict string) (status int, ignored, body string) {
			w := m.post(t.Context(), "/v1/chat/completions", `{"max_tokens":2,"messages":[{"role":"user","content":"Go"}],"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","strict":`+strict+`,
				"parameters":{"type":"object","properties":{"u":{"type":"string","format":"uri"}},"required":["u"],"x-order":1}}}]}`)
			return w.Code, w.Header().Get("X-Tandem-Ignored"), w.Body.String()
		}
		if status, ignored, body := ask("false"); status != http.StatusOK || ignored != "tools[].function.parameters.format=uri, tools[].function.parameters.x-order" {
			t.Errorf("%d %q %s", status, ignored, body)
		}
		if tag := d.Tasks()[0].GetStructuredOutput().GetStructuralTags().GetTags()[0]; !tag.GetLenient() {
			t.Errorf("the worker gets %v", tag)
		}
		if status, ignored, body := ask("true"); status != http.StatusBadRequest || ignored != "" || !strings.Contains(body, `"param":"tools[0].function.parameters"`) || !strings.Contains(body, "x-order: the keyword is not supported") {
			t.Errorf("strict: %d %q %s", status, ignored, body)
		}
	})
}
