package openai

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// format reads the form of the answer: OpenAI's, which was read already from the field called
// own, or vLLM's fields for the same. name is the field's. Nil: it may be anything.
func format(f *fields, own string, of *inferencev1.StructuredOutput) (form *inferencev1.StructuredOutput, name string) {
	var given []*inferencev1.StructuredOutput
	var names []string
	add := func(name string, form *inferencev1.StructuredOutput) {
		if form != nil {
			given, names = append(given, form), append(names, name)
		}
	}
	add(own, of)
	add("structured_outputs", structuredOutputs(f))
	for _, name := range forms {
		add("guided_"+name, guided(f, "guided_"+name, name))
	}
	if len(given) > 1 {
		f.wrong(invalid(names[1], fmt.Sprintf("%s is given too: give one of them", names[0])))
	}
	if len(given) == 0 || f.bad != nil {
		return nil, ""
	}
	return given[0], names[0]
}

func responseFormat(f *fields) *inferencev1.StructuredOutput {
	return formOf(f, "response_format", func(form *fields) *fields {
		schema := form.object("json_schema")
		if schema == nil {
			form.wrong(invalid(form.at+"json_schema", "has to be an object with a name and a schema"))
		}
		return schema
	})
}

// formOf reads one of OpenAI's forms; schema finds the named schema in it.
func formOf(f *fields, name string, schema func(form *fields) *fields) (out *inferencev1.StructuredOutput) {
	form := f.object(name)
	if form == nil {
		return nil
	}
	switch kind := form.text("type"); kind {
	case "text":
	case "json_object":
		out = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
	case "json_schema":
		if named := schema(form); named != nil {
			out = namedSchema(named)
			named.ignoreOthers()
		}
	default:
		form.wrong(unsupported(f.at+name, fmt.Sprintf("type %q is not supported: there are text, json_object and json_schema", clienterr.Shorten(kind))))
	}
	form.ignoreOthers()
	return out
}

// namedSchema reads a schema with its name. What is generated obeys it with strict and without.
func namedSchema(f *fields) *inferencev1.StructuredOutput {
	f.boolean("strict")
	f.text("description")
	if name := f.text("name"); name == "" {
		f.wrong(refuse(f.at+"name", codeMissing, "is missing: give the schema a name"))
	}
	raw, given := f.raw("schema")
	if !given {
		f.wrong(refuse(f.at+"schema", codeMissing, "is missing: give a JSON Schema"))
	}
	return jsonSchema(string(raw))
}

func jsonSchema(schema string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: schema}}
}

// forms are members of vLLM's structured_outputs, and as guided_NAME of its requests. refusedForms are
// further ones, which nothing here obeys.
var (
	forms        = []string{"json", "regex", "choice", "grammar"}
	refusedForms = []string{"structural_tag", "disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
)

// structuredOutputs reads vLLM's object with one of several forms.
func structuredOutputs(f *fields) (form *inferencev1.StructuredOutput) {
	given := f.object("structured_outputs")
	if given == nil {
		return nil
	}
	given.notSupported("is not supported in this version; leave it out", refusedForms...)
	for _, name := range slices.Sorted(maps.Keys(given.members)) {
		if name != "json_object" && !slices.Contains(forms, name) && !slices.Contains(refusedForms, name) {
			given.wrong(invalid(given.at+clienterr.Shorten(name), "is no form: there are json, regex, choice, grammar and json_object"))
		}
	}
	for _, name := range forms {
		if one := guided(given, name, name); one != nil && form != nil {
			given.wrong(invalid("structured_outputs", "has several forms: give one of them"))
		} else if one != nil {
			form = one
		}
	}
	if on, _ := given.boolean("json_object"); on && form != nil {
		given.wrong(invalid("structured_outputs", "has several forms: give one of them"))
	} else if on {
		form = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
	}
	return form
}

// guided reads one form of vLLM's: a schema, as an object or a text that is one, an expression,
// texts, or a grammar.
func guided(f *fields, name, kind string) *inferencev1.StructuredOutput {
	raw, given := f.raw(name)
	if !given || slices.Contains(offValues, string(raw)) {
		return nil
	}
	switch kind {
	case "json":
		if strings.HasPrefix(string(raw), `"`) {
			return jsonSchema(f.text(name))
		}
		return jsonSchema(string(raw))
	case "regex":
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: f.text(name)}}
	case "grammar":
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: f.text(name)}}
	}
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{
		Texts: f.texts(name, "an array of strings", grammar.MaxChoices),
	}}}
}
