package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// toolUse is the functions that answers may call.
type toolUse struct {
	names []string
	// old: they came as functions, and calls are said so.
	old bool
	// required: the answer is calls alone.
	required bool
	// callsFirst: it is calls, or has another form.
	callsFirst bool
}

// before is the use of tools in answers to a request, whose form is that of answers without calls.
func (u *toolUse) before(q *inferencev1.GenerateRequest) *toolUse {
	if u != nil {
		u.callsFirst = q.GetStructuredOutput() != nil
	}
	return u
}

// readTools reads what the model may call: tools and tool_choice, or functions and function_call,
// which came before them. Nil: nothing.
func readTools(f *fields, c *inferencev1.Conversation) *toolUse {
	use := new(toolUse)
	var texts []string
	tools, functions := f.list("tools"), f.list("functions")
	if f.isNone("tool_choice") {
		tools = nil
	}
	if f.isNone("function_call") {
		functions = nil
	}
	for i, raw := range tools {
		text := string(raw)
		tool := f.element(raw, fmt.Sprintf("tools[%d]", i))
		if tool == nil {
			return nil
		}
		if kind := tool.text("type"); kind != "function" && tool.bad == nil {
			tool.wrong(unsupported(tool.at+"type", fmt.Sprintf(`%q is not supported: give "function"`, clienterr.Shorten(kind))))
		}
		function := tool.object("function")
		if function == nil && tool.bad == nil {
			tool.wrong(refuse(tool.at+"function", codeMissing, "is missing"))
		}
		if tool.bad != nil {
			f.wrong(tool.bad)
			return nil
		}
		use.names = append(use.names, function.function(f))
		texts = append(texts, text)
	}
	for i, raw := range functions {
		function := f.element(raw, fmt.Sprintf("functions[%d]", i))
		if function == nil {
			return nil
		}
		use.old = true
		use.names = append(use.names, function.function(f))
		texts = append(texts, fmt.Sprintf(`{"type":"function","function":%s}`, raw))
	}
	if use.old && len(tools) > 0 {
		f.wrong(invalid("functions", "is given together with tools: give tools alone"))
	}
	choice := f.toolChoice(use)
	if parallel, given := f.boolean("parallel_tool_calls"); given && !parallel && choice != nil {
		choice.Single = true
	}
	if f.bad != nil || choice == nil || len(texts) == 0 {
		return nil
	}
	for i, text := range texts {
		if !f.count(fmt.Sprintf("tools[%d]", i), []byte(text)) {
			return nil
		}
	}
	c.ToolsJson, c.ToolChoice, use.required = texts, choice, choice.GetRequired()
	return use
}

// isNone says whether a choice is that there are no calls.
func (f *fields) isNone(name string) bool {
	raw, given := f.raw(name)
	return given && string(raw) == `"none"`
}

// function reads a function that can be called, and returns its name. What is wrong is kept in to.
func (f *fields) function(to *fields) string {
	name := f.text("name")
	if name == "" {
		f.wrong(refuse(f.at+"name", codeMissing, "is missing"))
	}
	f.text("description")
	f.boolean("strict")
	f.object("parameters")
	if f.bad != nil {
		to.wrong(f.bad)
	}
	return name
}

// toolChoice reads whether functions may, must or must not be called, and which; nil: none may.
func (f *fields) toolChoice(use *toolUse) *inferencev1.ToolChoice {
	name := "tool_choice"
	if use.old {
		name = "function_call"
	}
	for _, other := range []string{"tool_choice", "function_call"} {
		if raw, given := f.raw(other); given && other != name && string(raw) != `"none"` && string(raw) != `"auto"` {
			f.wrong(invalid(other, "is given without what it chooses from: tool_choice is for tools, function_call for functions"))
		}
	}
	choice := &inferencev1.ToolChoice{Single: use.old}
	raw, given := f.raw(name)
	switch {
	case !given || string(raw) == `"auto"`:
	case string(raw) == `"none"`:
		return nil
	case string(raw) == `"required"` && !use.old:
		choice.Required = true
	case raw[0] == '{':
		if f.chosen(f.object(name), use, choice); f.bad != nil {
			return nil
		}
	default:
		f.wrong(invalid(name, `has to be "none", "auto", "required" or an object that names a function`))
	}
	if given && len(use.names) == 0 && (choice.GetRequired() || len(choice.GetFunctions()) > 0) {
		f.wrong(invalid(name, "needs tools: give them, or leave it out"))
	}
	return choice
}

// chosen reads an object that names one function, or those that are allowed.
func (f *fields) chosen(object *fields, use *toolUse, choice *inferencev1.ToolChoice) {
	fail := func(of *fields) bool {
		if of != nil && of.bad != nil {
			f.wrong(of.bad)
		}
		return f.bad != nil
	}
	kind := object.text("type")
	switch {
	case use.old:
		choice.Required, choice.Functions = true, []string{object.text("name")}
	case kind == "function":
		function := object.object("function")
		if function == nil && object.bad == nil {
			object.wrong(refuse(object.at+"function", codeMissing, "is missing"))
		}
		if fail(object) {
			return
		}
		choice.Required, choice.Single, choice.Functions = true, true, []string{function.text("name")}
		fail(function)
	case kind == "allowed_tools":
		allowed := object.object("allowed_tools")
		if allowed == nil && object.bad == nil {
			object.wrong(refuse(object.at+"allowed_tools", codeMissing, "is missing"))
		}
		if fail(object) {
			return
		}
		f.allowed(allowed, choice)
		fail(allowed)
	default:
		object.wrong(unsupported(object.at+"type", fmt.Sprintf("%q is not supported: there are function and allowed_tools", clienterr.Shorten(kind))))
	}
	fail(object)
	for _, name := range choice.GetFunctions() {
		if f.bad == nil && !slices.Contains(use.names, name) {
			f.wrong(invalid("tool_choice", fmt.Sprintf("%q is none of the tools", clienterr.Shorten(name))))
		}
	}
}

func (f *fields) allowed(allowed *fields, choice *inferencev1.ToolChoice) {
	switch mode := allowed.text("mode"); mode {
	case "auto":
	case "required":
		choice.Required = true
	default:
		allowed.wrong(invalid(allowed.at+"mode", fmt.Sprintf("%q is neither auto nor required", clienterr.Shorten(mode))))
	}
	for i, raw := range allowed.list("tools") {
		var tool struct {
			Type     string
			Function struct{ Name string }
		}
		if json.NewDecoder(bytes.NewReader(raw)).Decode(&tool) != nil || tool.Type != "function" || tool.Function.Name == "" {
			allowed.wrong(invalid(fmt.Sprintf("%stools[%d]", allowed.at, i), `has to be {"type": "function", "function": {"name": …}}`))
			return
		}
		choice.Functions = append(choice.Functions, tool.Function.Name)
	}
	if len(choice.GetFunctions()) == 0 {
		allowed.wrong(refuse(allowed.at+"tools", codeMissing, "is missing or empty"))
	}
}
