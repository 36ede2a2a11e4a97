package openai

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// inputParts are the kinds of parts of an item, by the member that has the text of one.
var inputParts = map[string]string{"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

// messages reads instructions and input as a conversation.
func (r *response) messages(f *fields) (out []*inferencev1.Message) {
	add := func(place string, m *inferencev1.Message) {
		out, r.places = append(out, m), append(r.places, place)
	}
	if r.instructions != nil && *r.instructions != "" {
		add("instructions", &inferencev1.Message{Role: "system", Content: *r.instructions})
	}
	raw, given := f.raw("input")
	switch {
	case f.bad != nil:
		return nil
	case !given:
		f.wrong(refuse("input", codeMissing, "is missing; give a text or an array of items"))
		return nil
	case raw[0] == '"':
		add("input", &inferencev1.Message{Role: "user", Content: f.text("input")})
		return out
	case raw[0] != '[':
		f.wrong(wrongType("input", "a string or an array of items"))
		return nil
	}
	if n, _ := elements(raw); n == 0 {
		f.wrong(invalid("input", "is empty; give at least one item"))
	}
	for i, item := range f.objects("input") {
		m := item.item()
		item.ignoreOthers()
		// What a model wrote in one turn, a text and calls, is one message of it.
		if last := len(out) - 1; i > 0 && len(m.GetToolCalls()) > 0 && out[last].GetRole() == "assistant" {
			out[last].ToolCalls = append(out[last].ToolCalls, m.GetToolCalls()...)
			continue
		}
		add(strings.TrimSuffix(item.at, "."), m)
	}
	return out
}

// item reads one item as a message.
func (f *fields) item() *inferencev1.Message {
	kind := f.text("type")
	for _, name := range []string{"id", "status"} { // items of answers, which are sent back, have them
		f.has(name)
	}
	switch {
	case kind == "message", kind == "" && f.has("role"):
		return f.said()
	case kind == "function_call":
		return f.callItem()
	case kind == "function_call_output":
		id := f.needs("call_id")
		return &inferencev1.Message{Role: "tool", Name: f.text("name"), ToolCallId: id, Content: f.content("output", "tool", inputParts)}
	case kind == "item_reference", kind == "" && f.has("id"):
		f.wrong(notFound(f.at+"id", fmt.Sprintf("Item with id '%s' not found.", clienterr.Shorten(f.text("id"))), ""))
	case kind == "":
		f.wrong(refuse(f.at+"type", codeMissing, "is missing; give message, function_call or function_call_output"))
	default:
		f.wrong(unsupported(f.at+"type", fmt.Sprintf("%q is not supported: there are message, function_call and function_call_output", clienterr.Shorten(kind))))
	}
	return nil
}

// said reads a message.
func (f *fields) said() *inferencev1.Message {
	role := f.text("role")
	m := &inferencev1.Message{Role: roles[role]}
	if !slices.Contains([]string{"system", "developer", "user", "assistant"}, role) {
		f.wrong(invalid(f.at+"role", fmt.Sprintf("%q is none of system, developer, user and assistant", clienterr.Shorten(role))))
	}
	m.Content = f.content("content", role, inputParts)
	return m
}

// callItem reads a call that a model made.
func (f *fields) callItem() *inferencev1.Message {
	f.needs("name")
	return &inferencev1.Message{Role: "assistant", NoContent: true, ToolCalls: []*structpb.Struct{f.functionCall(f.needs("call_id"))}}
}

// needs is a text that has to be there.
func (f *fields) needs(name string) string {
	text := f.text(name)
	if text == "" {
		f.wrong(refuse(f.at+name, codeMissing, "is missing"))
	}
	return text
}

// needsObject is an object that has to be there; one without members if it is not.
func (f *fields) needsObject(name string) *fields {
	if object := f.object(name); object != nil {
		return object
	}
	f.wrong(refuse(f.at+name, codeMissing, "is missing"))
	return &fields{reading: f.reading}
}

// notKept refuses what names an object of OpenAI's: none is kept here, so that no id is known.
func notKept(f *fields) {
	if id := f.text("previous_response_id"); id != "" {
		f.wrong(&Failure{
			Status: http.StatusBadRequest, Type: typeInvalid, Param: "previous_response_id", Code: "previous_response_not_found",
			Message: fmt.Sprintf("Previous response with id '%s' not found. This server keeps no responses: send the conversation in input.", clienterr.Shorten(id)),
		})
	}
	raw, given := f.raw("conversation")
	if !given {
		return
	}
	id := strings.Trim(string(raw), `"`)
	if raw[0] == '{' {
		id = f.object("conversation").text("id")
	}
	f.wrong(notFound("conversation", fmt.Sprintf("Conversation with id '%s' not found. This server keeps no conversations: send yours in input.", clienterr.Shorten(id)), ""))
}

// notFound is the failure of a request that names an object which is not there.
func notFound(param, message, code string) error {
	return &Failure{Status: http.StatusNotFound, Type: typeInvalid, Param: param, Message: message, Code: code}
}
