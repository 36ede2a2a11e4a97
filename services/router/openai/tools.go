package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// toolUse is the functions that answers may call.
type toolUse struct {
	names []string
	// single: they call one at most.
	single bool
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

// chatTool is a tool as chats have it, and templates.
type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// readTools reads the functions that the model may call, and whether it has to: tools and
// tool_choice, or in chats functions and function_call, which came before them. Nil: it may call
// none, and the template does not see them.
func (c *parsedRequest) readTools(f *fields, conversation *inferencev1.Conversation) *toolUse {
	use := new(toolUse)
	var texts []string
	add := func(tool *fields, name, text string) {
		f.count(strings.TrimSuffix(tool.at, "."), []byte(text))
		use.names, texts = append(use.names, name), append(texts, text)
	}
	if c.response != nil {
		for _, tool := range f.objects("tools") {
			name, text := c.tool(tool)
			add(tool, name, text)
			c.response.tools = append(c.response.tools, tool.source)
		}
	} else {
		if f.isNone("tool_choice") {
			f.list("tools")
		} else {
			for _, tool := range f.objects("tools") {
				add(tool, c.functionIn(tool).function().Name, string(tool.source))
			}
		}
		tools := len(texts)
		if f.isNone("function_call") {
			f.list("functions")
		} else {
			for _, function := range f.objects("functions") {
				use.old = true
				add(function, function.function().Name, fmt.Sprintf(`{"type":"function","function":%s}`, function.source))
			}
		}
		if use.old && tools > 0 {
			f.wrong(invalid("functions", "is given together with tools: give tools alone"))
		}
	}
	choice := c.toolChoice(f, use)
	if f.bad != nil || choice == nil || len(texts) == 0 {
		return nil
	}
	conversation.ToolsJson, conversation.ToolChoice = texts, choice
	use.required, use.single = choice.GetRequired(), choice.GetSingle()
	if len(choice.GetFunctions()) > 0 {
		use.names = choice.GetFunctions()
	}
	return use
}

// isNone says whether a choice is that there are no calls.
func (f *fields) isNone(name string) bool {
	raw, given := f.raw(name)
	return given && string(raw) == `"none"`
}

// functionIn is the function of a tool, or of a choice: chats have it in an object of its own.
func (c *parsedRequest) functionIn(tool *fields) *fields {
	if kind := tool.needs("type"); kind != "function" {
		tool.wrong(unsupported(tool.at+"type", fmt.Sprintf("%q is not supported: this server runs no tools, and the model calls functions only", clienterr.Shorten(kind))))
	}
	if c.response != nil {
		return tool
	}
	return tool.needsObject("function")
}

// function reads a function that can be called.
func (f *fields) function() chatFunction {
	out := chatFunction{Name: f.needs("name"), Description: f.text("description")}
	if strict, given := f.boolean("strict"); given {
		out.Strict = &strict
	}
	if parameters := f.object("parameters"); parameters != nil {
		out.Parameters = parameters.source
	}
	return out
}

// tool reads a tool of a response: its name, and the tool as chats have it.
func (c *parsedRequest) tool(f *fields) (name, text string) {
	function := c.functionIn(f).function()
	f.notSupported("is not supported; leave it out", "async", "defer_loading")
	if callers := f.texts("allowed_callers", "an array of strings", maxElements); f.has("allowed_callers") && !slices.Contains(callers, "direct") {
		f.wrong(unsupported(f.at+"allowed_callers", `has to have "direct": only the model calls functions`))
	}
	f.ignoreOthers()
	body, err := marshal(chatTool{"function", function})
	f.wrong(err)
	return function.Name, string(body)
}

// toolChoice reads whether functions may, must or must not be called, and which; nil: none may.
func (c *parsedRequest) toolChoice(f *fields, use *toolUse) *inferencev1.ToolChoice {
	name, other := "tool_choice", "function_call"
	if use.old {
		name, other = other, name
	}
	if raw, given := f.raw(other); given && string(raw) != `"none"` && string(raw) != `"auto"` {
		f.wrong(invalid(other, "is given without what it chooses from: tool_choice is for tools, function_call for functions"))
	}
	parallel, given := f.boolean("parallel_tool_calls")
	parallel = parallel || !given
	choice := &inferencev1.ToolChoice{Single: use.old || !parallel}
	if c.response != nil {
		c.response.parallel = parallel
	}
	raw, given := f.raw(name)
	switch {
	case !given:
	case f.isNone(name):
		return nil
	case raw[0] == '{':
		c.chosen(f.object(name), use, choice)
	default:
		choice.Required = f.required(name, `"none", "auto", "required" or an object that names a function`)
	}
	if len(use.names) == 0 && (choice.GetRequired() || len(choice.GetFunctions()) > 0) {
		f.wrong(invalid(name, "needs tools: give them, or leave it out"))
	}
	for _, function := range choice.GetFunctions() {
		if !slices.Contains(use.names, function) {
			f.wrong(invalid(name, fmt.Sprintf("%q is none of the tools", clienterr.Shorten(function))))
		}
	}
	return choice
}

// required reads a word that says whether there has to be a call.
func (f *fields) required(name, want string) bool {
	var word string
	if f.decode(name, &word, want); word != "auto" && word != "required" {
		f.wrong(invalid(f.at+name, "has to be "+want))
	}
	return word == "required"
}

// chosen reads an object that names one function, or those that are allowed.
func (c *parsedRequest) chosen(f *fields, use *toolUse, choice *inferencev1.ToolChoice) {
	switch kind := f.text("type"); {
	case use.old:
		choice.Required, choice.Functions = true, []string{f.needs("name")}
	case kind == "function":
		choice.Required, choice.Single, choice.Functions = true, true, []string{c.functionIn(f).needs("name")}
	case kind == "allowed_tools":
		if c.response == nil {
			f = f.needsObject("allowed_tools")
		}
		choice.Required = f.required("mode", `"auto" or "required"`)
		for _, tool := range f.objects("tools") {
			choice.Functions = append(choice.Functions, c.functionIn(tool).needs("name"))
		}
		if len(choice.GetFunctions()) == 0 {
			f.wrong(refuse(f.at+"tools", codeMissing, "is missing or empty"))
		}
	default:
		f.wrong(unsupported(f.at+"type", fmt.Sprintf("%q is not supported: there are function and allowed_tools", clienterr.Shorten(kind))))
	}
}
