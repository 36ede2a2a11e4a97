package openai

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// parseChat translates a chat completion.
func parseChat(f *fields) (*parsedRequest, error) {
	c := &parsedRequest{route: RouteChat, chat: true}
	q := c.common(f)
	q.StructuredOutput, c.form = format(f, "response_format", responseFormat(f))
	chatLogprobs(f, c, q)
	modalities(f)
	f.notSupported("is chosen by the server: start it with --chat-template FILE, and leave this out; pass that template's variables in chat_template_kwargs", "chat_template")
	f.notSupported("is not supported for chats in this version; leave it out", "documents", "add_special_tokens", "echo")
	conversation := &inferencev1.Conversation{Messages: messages(f)}
	c.tools = c.readTools(f, conversation).before(q)
	conversation.ContinueLastMessage = continues(f)
	conversation.TemplateArguments = f.generic("chat_template_kwargs")
	if f.bad != nil {
		return nil, f.bad
	}
	c.verbatim = f.verbatim
	q.Input = &inferencev1.GenerateRequest_Conversation{Conversation: conversation}
	c.repeat([]*inferencev1.GenerateRequest{q})
	return c, nil
}

// chatLogprobs reads logprobs and top_logprobs.
func chatLogprobs(f *fields, c *parsedRequest, q *inferencev1.GenerateRequest) {
	c.logprobs, _ = f.boolean("logprobs")
	top := f.integerIn("top_logprobs", 0, sampler.MaxTopLogprobs)
	switch {
	case c.logprobs && top != nil:
		q.Logprobs = proto.Uint32(uint32(*top))
	case c.logprobs:
		q.Logprobs = proto.Uint32(0)
	case top != nil && *top > 0:
		f.wrong(invalid("top_logprobs", "needs logprobs to be true"))
	}
}

// modalities takes text only.
func modalities(f *fields) {
	for _, raw := range f.list("modalities") {
		if string(raw) != `"text"` {
			f.wrong(unsupported("modalities", `only ["text"] is supported`))
		}
	}
}

// continues reads whether the model goes on with the last message.
func continues(f *fields) bool {
	goOn, _ := f.boolean("continue_final_message")
	begin, given := f.boolean("add_generation_prompt")
	switch {
	case goOn && begin:
		f.wrong(invalid("continue_final_message", "cannot be true together with add_generation_prompt"))
	case given && !begin && !goOn:
		f.wrong(unsupported("add_generation_prompt", "can be false only together with continue_final_message"))
	}
	return goOn
}

// messages reads the conversation.
func messages(f *fields) (out []*inferencev1.Message) {
	for _, m := range f.objects("messages") {
		out = append(out, m.message())
		m.ignoreOthers()
	}
	if len(out) == 0 {
		f.wrong(refuse("messages", codeMissing, "is missing or empty; give at least one message"))
	}
	return out
}

// roles are those of OpenAI, as templates call them.
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}

// oldCallID stands for the id of a call in messages of before there were ids.
const oldCallID = "function0"

// message reads one message.
func (f *fields) message() *inferencev1.Message {
	role := f.text("role")
	m := &inferencev1.Message{Role: roles[role], Name: f.text("name"), ToolCallId: f.text("tool_call_id")}
	switch {
	case f.bad != nil:
		return nil
	case role == "":
		f.wrong(refuse(f.at+"role", codeMissing, "is missing; give system, developer, user, assistant or tool"))
	case m.GetRole() == "":
		f.wrong(invalid(f.at+"role", fmt.Sprintf("%q is none of system, developer, user, assistant and tool", clienterr.Shorten(role))))
	}
	m.Content = f.content("content", role, chatParts)
	if role == "assistant" {
		m.ReasoningContent = cmp.Or(f.text("reasoning_content"), f.text("reasoning"))
	}
	m.ToolCalls = f.calls(role)
	if role == "function" {
		m.ToolCallId = oldCallID
	}
	if function := f.object("function_call"); function != nil && role == "assistant" {
		m.ToolCalls = append(m.ToolCalls, function.functionCall(oldCallID))
	}
	// As in transformers: a template may render calls only where there is no content.
	m.NoContent = len(m.GetToolCalls()) > 0 && m.GetContent() == "" && !f.has("content")
	if f.has("audio") {
		f.wrong(unsupported(f.at+"audio", "is not supported; leave it out"))
	}
	return m
}

// chatParts are the kinds of parts of a message, by the member that has the text of one.
var chatParts = map[string]string{"text": "text", "refusal": "refusal"}

// content reads what a message says from a member, of parts of some kinds. Parts are joined by
// line breaks, as vLLM does.
func (f *fields) content(name, role string, kinds map[string]string) string {
	raw, given := f.raw(name)
	switch {
	case f.bad != nil:
		return ""
	case !given && role == "assistant":
		return f.text("refusal") // there may be neither: a message of calls alone
	case !given:
		f.wrong(refuse(f.at+name, codeMissing, "is missing; give a string or parts of text"))
		return ""
	case raw[0] == '"':
		return f.text(name)
	}
	if raw[0] != '[' {
		f.wrong(wrongType(f.at+name, "a string or an array of parts"))
		return ""
	}
	out := make([]byte, 0, len(raw))
	for i, part := range f.objects(name) {
		kind := part.text("type")
		text, known := kinds[kind]
		switch {
		case kind == "":
			part.wrong(refuse(part.at+"type", codeMissing, "is missing; give one of "+strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")))
		case !known:
			part.wrong(unsupported(part.at+"type", fmt.Sprintf("%q is not supported: this model reads text only", clienterr.Shorten(kind))))
		case !part.has(text):
			part.wrong(refuse(part.at+text, codeMissing, "is missing"))
		}
		if i > 0 {
			out = append(out, '\n')
		}
		out = append(out, part.text(text)...)
		part.ignoreOthers()
	}
	return string(out)
}

// calls reads the calls of tools that an assistant made.
func (f *fields) calls(role string) (out []*structpb.Struct) {
	for _, call := range f.objects("tool_calls") {
		if role != "assistant" {
			f.wrong(invalid(f.at+"tool_calls", "only an assistant's message can have tool calls"))
		}
		if kind := call.text("type"); kind != "" && kind != "function" {
			call.wrong(unsupported(call.at+"type", fmt.Sprintf("%q is not supported, only \"function\"", clienterr.Shorten(kind))))
		}
		out = append(out, call.needsObject("function").functionCall(call.text("id")))
		call.ignoreOthers()
	}
	return out
}

// functionCall reads the call of a function that an assistant made.
func (f *fields) functionCall(id string) *structpb.Struct {
	made, err := structpb.NewStruct(map[string]any{
		"id": id, "type": "function", "function": map[string]any{"name": f.text("name"), "arguments": f.arguments()},
	})
	if err != nil {
		f.wrong(invalid(f.at+"name", "is not valid text"))
	}
	return made
}
