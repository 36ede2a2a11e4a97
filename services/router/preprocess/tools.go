package preprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// ToolCallsAuto is the value of Model.ToolCallParser that finds the format in the chat template,
// ToolCallsNone the one that has calls refused.
const (
	ToolCallsAuto = "auto"
	ToolCallsNone = "none"
)

// CheckToolCallParser says what is wrong with a value of Model.ToolCallParser, if anything is.
func CheckToolCallParser(name string) error {
	known := append([]string{ToolCallsAuto, ToolCallsNone}, toolcalls.Names()...)
	if name != "" && !slices.Contains(known, name) {
		return fmt.Errorf("%q is none of %s", name, strings.Join(known, ", "))
	}
	return nil
}

// findToolCalls finds the format of the model's calls: what was asked for, or what the source of its template has.
func (m *Model) findToolCalls(source string) {
	name := m.ToolCallParser
	if name == ToolCallsAuto {
		name = ""
	}
	m.calls, m.knowsCalls = toolcalls.Of(name, source)
	if !m.knowsCalls && name != ToolCallsNone {
		// It is as good as any for a model that has not learned one.
		m.calls, _ = toolcalls.Of(toolcalls.Hermes, "")
	}
	for _, marker := range m.calls.Markers() {
		if m.Tokenizer == nil {
			break
		}
		if id, is := m.Tokenizer.TokenID(marker); is && m.Tokenizer.IsSpecial(id) {
			m.markers = append(m.markers, marker)
		}
	}
}

// functionName is what functions may be called.
var functionName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// noParameters are those of a function that says nothing of them: none, as in OpenAI's API.
const noParameters = `{"type":"object","properties":{},"additionalProperties":false}`

// toolCalls is what holds an output to calls of a conversation's tools. otherwise is the form of one
// without any; nil: it is free text.
func (m *Model) toolCalls(c *inferencev1.Conversation, choice *inferencev1.ToolChoice, otherwise *inferencev1.StructuredOutput) (*inferencev1.StructuralTags, error) {
	switch {
	case m.calls.Name == "":
		return nil, rpc.InvalidArgument("conversation.tool_choice", "the router was started with --tool-call-parser none: leave tools out")
	case !m.knowsCalls && !choice.GetRequired():
		return nil, rpc.InvalidArgument("conversation.tool_choice", fmt.Sprintf("the chat template of %s has no tool calls in a format that is known: ask for a call with \"required\" or a function's name, or start the router with --tool-call-parser NAME", m.Spec.Name))
	}
	tools, err := toolsOf(c)
	if err != nil {
		return nil, err
	}
	if len(tools) == 0 {
		return nil, rpc.InvalidArgument("conversation.tool_choice", "needs tools: give them, or leave it out")
	}
	if wanted := choice.GetFunctions(); len(wanted) > 0 {
		for _, name := range wanted {
			if !slices.ContainsFunc(tools, func(t toolcalls.Tool) bool { return t.Name == name }) {
				return nil, rpc.InvalidArgument("conversation.tool_choice", fmt.Sprintf("%q is none of the tools", clienterr.Shorten(name)))
			}
		}
		tools = slices.DeleteFunc(tools, func(t toolcalls.Tool) bool { return !slices.Contains(wanted, t.Name) })
	}
	if choice.GetRequired() || otherwise == nil {
		return m.calls.Tags(tools, choice.GetRequired(), choice.GetSingle(), m.markers), nil
	}
	tags := m.calls.Tags(tools, true, choice.GetSingle(), m.markers)
	tags.Otherwise = otherwise
	return tags, nil
}

// toolsOf reads the tools.
func toolsOf(c *inferencev1.Conversation) ([]toolcalls.Tool, error) {
	if len(c.GetTools()) > 0 && len(c.GetToolsJson()) > 0 {
		return nil, rpc.InvalidArgument("conversation.tools_json", "is given together with tools: give one of them")
	}
	texts := make([][]byte, 0, len(c.GetTools())+len(c.GetToolsJson()))
	for i, t := range c.GetTools() {
		text, err := t.MarshalJSON()
		if err != nil {
			return nil, rpc.InvalidArgument(fmt.Sprintf("conversation.tools[%d]", i), err.Error())
		}
		texts = append(texts, text)
	}
	for _, text := range c.GetToolsJson() {
		texts = append(texts, []byte(text))
	}
	out := make([]toolcalls.Tool, len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("conversation.tools[%d]", i)
		var tool struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
				Strict     bool
			}
		}
		if err := json.Unmarshal(text, &tool); err != nil {
			return nil, rpc.InvalidArgument(field, `has to be {"type": "function", "function": {"name": …, "parameters": …}}`)
		}
		name := tool.Function.Name
		switch {
		case !functionName.MatchString(name):
			return nil, rpc.InvalidArgument(field+".function.name", "has to be 1 to 64 letters, digits, underscores, dashes and dots")
		case slices.ContainsFunc(out[:i], func(t toolcalls.Tool) bool { return t.Name == name }):
			return nil, rpc.InvalidArgument(field+".function.name", fmt.Sprintf("%q is the name of two tools", name))
		}
		parameters, err := ofObjects(tool.Function.Parameters)
		if err != nil {
			return nil, rpc.InvalidArgument(field+".function.parameters", err.Error())
		}
		out[i] = toolcalls.Tool{Name: name, Parameters: parameters, Strict: tool.Function.Strict}
	}
	return out, nil
}

// ofObjects is a schema that allows objects alone.
func ofObjects(schema json.RawMessage) (string, error) {
	text := strings.TrimSpace(string(schema))
	if text == "" || text == "null" {
		return noParameters, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		return "", errors.New("has to be a JSON Schema of an object")
	}
	kind, given := members["type"]
	switch {
	case given && string(kind) != `"object"`:
		return "", errors.New(`/type: has to be "object": arguments are objects`)
	case given:
		return text, nil
	case len(members) == 0:
		return `{"type":"object"}`, nil
	}
	return `{"type":"object",` + strings.TrimPrefix(text, "{"), nil
}

// wrongTool is what is wrong with calls, by the tool that it is of, or with the form of other answers.
func wrongTool(c *inferencev1.Conversation, tags *inferencev1.StructuralTags, wrong *grammar.Error) error {
	if field, is := strings.CutPrefix(wrong.Field, "structural_tags.otherwise."); is {
		return wrongForm(&grammar.Error{Field: field, Problem: wrong.Problem})
	}
	tools, _ := toolsOf(c)
	var tag int
	if _, err := fmt.Sscanf(wrong.Field, "structural_tags.tags[%d].json_schema", &tag); err != nil {
		return rpc.InvalidArgument("conversation.tools", wrong.Problem)
	}
	of := tags.GetTags()[tag]
	i := slices.IndexFunc(tools, func(t toolcalls.Tool) bool { return t.Parameters == of.GetJsonSchema() && t.Strict != of.GetLenient() })
	return rpc.InvalidArgument(fmt.Sprintf("conversation.tools[%d].function.parameters", i), wrong.Problem)
}

// holdToCalls has a plan's output held to calls of a conversation's tools. If it has a form, that is
// the form of answers that call nothing.
func (s *Models) holdToCalls(ctx context.Context, p *Plan, c *inferencev1.Conversation, choice *inferencev1.ToolChoice) error {
	form := p.Structured
	if form.GetStructuralTags() != nil {
		return rpc.InvalidArgument("structured_output.structural_tags", "is not supported together with tools that can be called: leave one of them out")
	}
	tags, err := p.Model.toolCalls(c, choice, form)
	if err != nil {
		return err
	}
	if form != nil && choice.GetRequired() { // no answer has the form, which has to be right all the same
		_, err := s.compile(ctx, p.Envelope.GetTenant(), form)
		if wrong, is := errors.AsType[*grammar.Error](err); is {
			return wrongForm(wrong)
		} else if err != nil {
			return err
		}
	}
	p.ToolCalls = p.Model.calls.Name
	for _, name := range tags.GetSpecialTokens() {
		if id, is := p.Model.Tokenizer.TokenID(name); is {
			p.Shown = append(p.Shown, id)
		}
	}
	p.Structured = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: tags}}
	return nil
}
