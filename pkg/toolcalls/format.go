package toolcalls

import (
	"fmt"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Names of formats, which are those of vLLM's --tool-call-parser.
const (
	// Hermes is that of Qwen 2.5 and 3 and of the Hermes models:
	//
	//	<tool_call>
	//	{"name": "f", "arguments": {…}}
	//	</tool_call>
	Hermes = "hermes"
	// Llama3 is that of Llama 3.1 and later: an answer that is {"name": "f", "parameters": {…}},
	// with <|python_tag|> before it or without. It has one call.
	Llama3 = "llama3_json"
	// Mistral is [TOOL_CALLS][{"name": "f", "arguments": {…}}, …], or in later models
	// [TOOL_CALLS]f[ARGS]{…}[TOOL_CALLS]….
	Mistral = "mistral"
)

// Names are the formats' names.
func Names() []string { return []string{Hermes, Llama3, Mistral} }

// Special tokens of the formats.
const (
	hermesOpen, hermesClose = "<tool_call>", "</tool_call>"
	llamaTag                = "<|python_tag|>"
	mistralCalls            = "[TOOL_CALLS]"
	mistralID               = "[CALL_ID]"
	mistralArguments        = "[ARGS]"
)

// Format is how a model writes calls.
type Format struct {
	// Name is one of Names.
	Name string
	// named: Mistral's later form. spaced: its first one, with a space before the list.
	named, spaced bool
}

// Of is the format of a model with a chat template. name is one of Names; empty: it is the one
// that the template writes calls of earlier messages in. False: that is none of them.
func Of(name, template string) (Format, bool) {
	if name == "" {
		name = find(template)
	}
	if !slices.Contains(Names(), name) {
		return Format{}, false
	}
	return Format{
		Name: name, named: strings.Contains(template, mistralArguments),
		spaced: strings.Contains(template, mistralCalls+" ["),
	}, true
}

func find(template string) string {
	has := func(text string) bool { return strings.Contains(template, text) }
	switch {
	case has(mistralCalls):
		return Mistral
	case has("<function=") || has("<arg_key>"): // others that begin as Hermes' do
		return ""
	case has(hermesOpen):
		return Hermes
	case has(llamaTag), has("<|start_header_id|>") && has(`{"name": "`) && has(`"parameters": `):
		return Llama3 // the text models of Llama 3.2 write calls without the tag
	}
	return ""
}

// Markers are the texts that calls are recognized by, where each is one token of its own in most
// vocabularies. Those that are special tokens have to be shown to a Parser.
func (f Format) Markers() []string {
	switch f.Name {
	case Hermes:
		return []string{hermesOpen, hermesClose}
	case Llama3:
		return []string{llamaTag}
	}
	return []string{mistralCalls, mistralID, mistralArguments}
}

// Tool is a function that a model may call.
type Tool struct {
	Name string
	// Parameters is a JSON Schema of objects, as text.
	Parameters string
	// Strict refuses keywords of Parameters that cannot be enforced. Else they are annotations.
	Strict bool
}

// Tags holds an output to tool calls: all of it if required, or what begins as a call does.
// single: there is at most one call. special are the Markers that are special tokens of the model.
func (f Format) Tags(tools []Tool, required, single bool, special []string) *inferencev1.StructuralTags {
	out := &inferencev1.StructuralTags{SpecialTokens: special, Single: single}
	tag := func(begin string, t Tool, end string) {
		out.Tags = append(out.Tags, &inferencev1.StructuralTag{Begin: begin, JsonSchema: t.Parameters, Lenient: !t.Strict, End: end})
	}
	switch {
	case f.Name == Hermes:
		out.Separator, out.Repeats = "\n", !single
		out.Triggers = []string{hermesOpen}
		for _, t := range tools {
			tag(fmt.Sprintf("%s\n{\"name\": %q, \"arguments\": ", hermesOpen, t.Name), t, "}\n"+hermesClose)
		}
	case f.Name == Llama3:
		// Without a mark before it only the name tells a call from other JSON.
		out.Single, out.AtStart = true, true
		begins := []string{"{", `{"type": "function", `}
		if required {
			begins = begins[:1]
		} else if slices.Contains(special, llamaTag) {
			begins = append(begins, llamaTag+"{")
			out.Triggers = []string{llamaTag}
		}
		for _, t := range tools {
			for _, begin := range begins {
				name := fmt.Sprintf(`%s"name": %q`, begin, t.Name)
				tag(name+`, "parameters": `, t, "}")
				if !strings.HasPrefix(begin, llamaTag) {
					out.Triggers = append(out.Triggers, name)
				}
			}
		}
	case f.named:
		out.Triggers = []string{mistralCalls}
		for _, t := range tools {
			tag(mistralCalls+t.Name+mistralArguments, t, "")
		}
	default:
		out.Open, out.Separator, out.Close = mistralCalls+"[", ", ", "]"
		if f.spaced {
			out.Open = mistralCalls + " ["
		}
		out.Triggers = []string{mistralCalls}
		for _, t := range tools {
			tag(fmt.Sprintf(`{"name": %q, "arguments": `, t.Name), t, "}")
		}
	}
	if required {
		out.Triggers, out.AtStart, out.Repeats = nil, false, false
	}
	return out
}
