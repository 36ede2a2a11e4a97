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
	if !f.isNone("tool_choice") {
		for _, tool := range f.objects("tools") {
			if kind := tool.text("type"); kind != "function" {
				tool.wrong(unsupported(tool.at+"type", fmt.Sprintf(`%q is not supported: give "function"`, clienterr.Shorten(kind))))
			}
			use.names = append(use.names, tool.needsObject("function").function())
			texts = append(texts, string(tool.source))
		}
	}
	tools := len(texts)
	if !f.isNone("function_call") {
		for _, function := range f.objects("functions") {
			use.old = true
			use.names = append(use.names, function.function())
			texts = append(texts, fmt.Sprintf(`{"type":"function","function":%s}`, function.source))
		}
	}
	if use.old && tools > 0 {
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

// function reads a function that can be called, and returns its name.
func (f *fields) function() string {
	f.text("description")
	f.boolean("strict")
	f.object("parameters")
	return f.needs("name")
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
		f.object(name).chosen(use, choice)
	default:
		f.wrong(invalid(name, `has to be "none", "auto", "required" or an object that names a function`))
	}
	if given && len(use.names) == 0 && (choice.GetRequired() || len(choice.GetFunctions()) > 0) {
		f.wrong(invalid(name, "needs tools: give them, or leave it out"))
	}
	return choice
}

// chosen reads an object that names one function, or those that are allowed.
func (f *fields) chosen(use *toolUse, choice *inferencev1.ToolChoice) {
	kind := f.text("type")
	switch {
	case use.old:
		choice.Required, choice.Functions = true, []string{f.text("name")}
	case kind == "function":
		choice.Required, choice.Single, choice.Functions = true, true, []string{f.needsObject("function").text("name")}
	case kind == "allowed_tools":
		f.needsObject("allowed_tools").allowed(choice)
	default:
		f.wrong(unsupported(f.at+"type", fmt.Sprintf("%q is not supported: there are function and allowed_tools", clienterr.Shorten(kind))))
	}
	for _, name := range choice.GetFunctions() {
		if !slices.Contains(use.names, name) {
			f.wrong(invalid("tool_choice", fmt.Sprintf("%q is none of the tools", clienterr.Shorten(name))))
		}
	}
}

func (f *fields) allowed(choice *inferencev1.ToolChoice) {
	switch mode := f.text("mode"); mode {
	case "auto":
	case "required":
		choice.Required = true
	default:
		f.wrong(invalid(f.at+"mode", fmt.Sprintf("%q is neither auto nor required", clienterr.Shorten(mode))))
	}
	for i, raw := range f.list("tools") {
		var tool struct {
			Type     string
			Function struct{ Name string }
		}
		if json.NewDecoder(bytes.NewReader(raw)).Decode(&tool) != nil || tool.Type != "function" || tool.Function.Name == "" {
			f.wrong(invalid(fmt.Sprintf("%stools[%d]", f.at, i), `has to be {"type": "function", "function": {"name": …}}`))
			return
		}
		choice.Functions = append(choice.Functions, tool.Function.Name)
	}
	if len(choice.GetFunctions()) == 0 {
		f.wrong(refuse(f.at+"tools", codeMissing, "is missing or empty"))
	}
}
