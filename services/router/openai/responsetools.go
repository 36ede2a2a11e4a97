package openai

import (
	"encoding/json"
	"fmt"
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// chatTool is a tool as chats have it, and templates.
type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description *string         `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// readTools reads the functions that the model may call, and whether it has to. Nil: it may call
// none, and the template does not see them.
func (r *response) readTools(f *fields, conversation *inferencev1.Conversation) *toolUse {
	use := new(toolUse)
	var texts []string
	for i, tool := range f.objects("tools") {
		text, name := tool.chatTool()
		f.count(fmt.Sprintf("tools[%d]", i), tool.source)
		tool.ignoreOthers()
		texts, use.names, r.tools = append(texts, text), append(use.names, name), append(r.tools, tool.source)
	}
	choice := r.toolChoice(f)
	if choice != nil && len(texts) == 0 && (choice.GetRequired() || len(choice.GetFunctions()) > 0) {
		f.wrong(invalid("tool_choice", "needs tools: give them, or leave it out"))
	}
	for _, name := range choice.GetFunctions() {
		if !slices.Contains(use.names, name) {
			f.wrong(invalid("tool_choice", fmt.Sprintf("%q is none of the tools", clienterr.Shorten(name))))
		}
	}
	if f.bad != nil || choice == nil || len(texts) == 0 {
		return nil
	}
	choice.Single = choice.GetSingle() || !r.parallel
	conversation.ToolsJson, conversation.ToolChoice, use.required = texts, choice, choice.GetRequired()
	return use
}

// chatTool is a function as chats have it, and its name.
func (f *fields) chatTool() (text, name string) {
	if kind := f.needs("type"); kind != "function" {
		f.wrong(unsupported(f.at+"type", fmt.Sprintf("%q is not supported: this server runs no tools, and the model calls functions only", clienterr.Shorten(kind))))
	}
	out := chatTool{Type: "function", Function: chatFunction{Name: f.needs("name")}}
	if description := f.text("description"); description != "" {
		out.Function.Description = &description
	}
	if strict, given := f.boolean("strict"); given {
		out.Function.Strict = &strict
	}
	out.Function.Parameters, _ = f.raw("parameters")
	f.notSupported("is not supported; leave it out", "async", "defer_loading")
	if callers := f.texts("allowed_callers", "an array of strings"); f.has("allowed_callers") && !slices.Contains(callers, "direct") {
		f.wrong(unsupported(f.at+"allowed_callers", `has to have "direct": only the model calls functions`))
	}
	body, err := marshal(out)
	if err != nil {
		f.wrong(wrongType(f.at+"parameters", "a JSON Schema"))
	}
	return string(body), out.Function.Name
}

// toolChoice reads tool_choice. Nil: the model calls none.
func (r *response) toolChoice(f *fields) *inferencev1.ToolChoice {
	raw, given := f.raw("tool_choice")
	if !given {
		return new(inferencev1.ToolChoice)
	}
	r.choice = raw
	if raw[0] == '"' {
		return choiceOf(f, "tool_choice", f.text("tool_choice"))
	}
	object := f.object("tool_choice")
	out := new(inferencev1.ToolChoice)
	switch kind := object.text("type"); kind {
	case "function":
		out.Required, out.Single, out.Functions = true, true, []string{object.needs("name")}
	case "allowed_tools":
		out = choiceOf(object, "mode", object.text("mode"))
		for _, tool := range object.objects("tools") {
			if out == nil {
				break
			}
			if kind := tool.text("type"); kind != "function" {
				tool.wrong(unsupported(tool.at+"type", fmt.Sprintf("%q is not supported, only \"function\"", clienterr.Shorten(kind))))
			}
			out.Functions = append(out.Functions, tool.needs("name"))
		}
		if out != nil && len(out.GetFunctions()) == 0 {
			object.wrong(refuse(object.at+"tools", codeMissing, "is missing or empty"))
		}
	default:
		object.wrong(unsupported(object.at+"type", fmt.Sprintf("%q is not supported: there are function and allowed_tools", clienterr.Shorten(kind))))
	}
	return out
}

// choiceOf is a choice by its word.
func choiceOf(f *fields, field, word string) *inferencev1.ToolChoice {
	switch word {
	case "none":
		return nil
	case "auto":
		return new(inferencev1.ToolChoice)
	case "required":
		return &inferencev1.ToolChoice{Required: true}
	}
	f.wrong(unsupported(f.at+field, fmt.Sprintf("%q is not supported: there are none, auto and required", clienterr.Shorten(word))))
	return nil
}
