package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// response holds the parts of a request that chats lack: the fields of the request that the answer
// repeats, and the places of its messages.
type response struct {
	instructions *string
	most         *int64 // tokens
	toolCalls    *int64 // max_tool_calls
	metadata     map[string]string
	temperature  *float32
	topP         *float32
	top          int64 // alternatives of each token
	format       json.RawMessage
	verbosity    *string
	parallel     bool
	tools        []json.RawMessage
	choice       json.RawMessage // nil: none was made
	tier         string
	truncation   string
	// places are the fields of the messages, such as "input[2]".
	places []string
}

// parseResponse translates a request for a response.
func parseResponse(f *fields) (*parsedRequest, error) {
	r := &response{truncation: truncationDisabled}
	c := &parsedRequest{route: RouteResponses, chat: true, response: r}
	q := c.common(f)
	if c.n > 1 {
		f.wrong(unsupported("n", "a response has one answer: leave it out, or ask several times"))
	}
	r.temperature, r.topP = q.GetSampling().Temperature, q.GetSampling().TopP
	r.most = f.integer("max_output_tokens")
	r.text(f, c, q)
	r.logprobs(f, c, q)
	r.told(f)
	notKept(f)
	f.ofChats()
	modalities(f)
	if begin, given := f.boolean("add_generation_prompt"); given && !begin {
		f.wrong(unsupported("add_generation_prompt", "cannot be false: a response is a new message; leave it out"))
	}
	f.notSupported("is not supported for responses: leave it out", "resumable_for", "background", "prompt", "context_management", "personality",
		"continue_final_message", "chat_template", "documents", "add_special_tokens", "echo")
	if text := f.text("instructions"); f.has("instructions") {
		r.instructions = &text
	}
	conversation := &inferencev1.Conversation{Messages: r.messages(f), TemplateArguments: f.generic("chat_template_kwargs")}
	c.tools = c.readTools(f, conversation).before(q)
	if f.bad != nil {
		return nil, f.bad
	}
	c.verbatim = f.verbatim
	q.Input = &inferencev1.GenerateRequest_Conversation{Conversation: conversation}
	c.repeat([]*inferencev1.GenerateRequest{q})
	return c, nil
}

// otherNames are fields of chats that change the answer, with the fields of responses that
// replace them.
var otherNames = map[string]string{
	"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens", "messages": "input", "response_format": "text.format",
	"functions": "tools", "function_call": "tool_choice", "logprobs": "include, with " + includeLogprobs,
}

// ofChats refuses fields of chats: their sender has mistaken the endpoint.
func (f *fields) ofChats() {
	for _, name := range slices.Sorted(maps.Keys(otherNames)) {
		f.notSupported("is a field of completions: responses have "+otherNames[name], name)
	}
}

// text reads the form of the answer.
func (r *response) text(f *fields, c *parsedRequest, q *inferencev1.GenerateRequest) {
	var form *inferencev1.StructuredOutput
	if text := f.object("text"); text != nil {
		form = formOf(text, "format", func(form *fields) *fields { return form })
		r.format, _ = text.raw("format")
		if verbosity := text.text("verbosity"); verbosity != "" {
			r.verbosity = &verbosity
		}
		text.ignoreOthers()
	}
	q.StructuredOutput, c.form = format(f, "text.format", form)
}

// includeLogprobs asks for log probabilities.
const includeLogprobs = "message.output_text.logprobs"

// includable are the other values of include. They have no effect, since they concern tools,
// images and reasoning that are not served.
var includable = []string{
	"file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
	"computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content",
}

// logprobs reads include and top_logprobs.
func (r *response) logprobs(f *fields, c *parsedRequest, q *inferencev1.GenerateRequest) {
	if f.has("include") {
		for i, name := range f.texts("include", "an array of strings", maxElements) {
			switch {
			case name == includeLogprobs:
				c.logprobs = true
			case !slices.Contains(includable, name):
				f.wrong(unsupported(fmt.Sprintf("include[%d]", i), fmt.Sprintf("%q is not supported, only %s", clienterr.Shorten(name), includeLogprobs)))
			}
		}
	}
	top := f.integerIn("top_logprobs", 0, sampler.MaxTopLogprobs)
	if top != nil {
		r.top = *top
	}
	switch {
	case c.logprobs:
		q.Logprobs = proto.Uint32(uint32(r.top))
	case r.top > 0:
		f.wrong(invalid("top_logprobs", "needs include to have "+includeLogprobs))
	}
}

// OpenAI's bounds of metadata.
const (
	maxMetadata      = 16
	maxMetadataKey   = 64 // characters
	maxMetadataValue = 512
)

// Values of truncation.
const (
	truncationDisabled = "disabled"
	truncationAuto     = "auto"
)

// told reads fields that the answer repeats.
func (r *response) told(f *fields) {
	if f.decode("metadata", &r.metadata, "an object of strings") && len(r.metadata) > maxMetadata {
		f.wrong(invalid("metadata", fmt.Sprintf("has %d members, more than %d", len(r.metadata), maxMetadata)))
	}
	for key, value := range r.metadata {
		if len([]rune(key)) > maxMetadataKey || len([]rune(value)) > maxMetadataValue {
			f.wrong(invalid("metadata", fmt.Sprintf("keys have at most %d characters, and values %d", maxMetadataKey, maxMetadataValue)))
		}
	}
	switch text := f.text("truncation"); text {
	case "":
	case truncationDisabled, truncationAuto:
		r.truncation = text
	default:
		f.wrong(unsupported("truncation", fmt.Sprintf("%q is not supported: there are auto and disabled", clienterr.Shorten(text))))
	}
	r.toolCalls = f.integerIn("max_tool_calls", 0, math.MaxInt32)
	r.choice, _ = f.raw("tool_choice")
	f.boolean("store") // nothing is stored, and the answer says so
	f.object("reasoning")
	f.object("access_programs")
}

// bytes estimates the memory of the repeated fields until the answer is written.
func (r *response) bytes() int64 {
	n := len(r.format) + len(r.choice)
	for _, tool := range r.tools {
		n += len(tool)
	}
	if r.instructions != nil {
		n += len(*r.instructions)
	}
	for key, value := range r.metadata {
		n += len(key) + len(value) + valueBytes
	}
	return 3 * int64(n) // a text, and its JSON twice
}
