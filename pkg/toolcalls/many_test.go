package toolcalls_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// As many tools as a request may have are allowed in each format, with the longest names and all of
// the schemas that there may be.
func TestManyTools(t *testing.T) {
	const most = 512
	padding := strings.Repeat("x", grammar.MaxSourceBytes/most-110)
	tools := make([]toolcalls.Tool, most)
	for i := range tools {
		tools[i] = toolcalls.Tool{
			Name:       fmt.Sprintf("%03d%s", i, strings.Repeat("f", 61)),
			Parameters: fmt.Sprintf(`{"type":"object","properties":{"p%d":{"type":"string"}},"additionalProperties":false,"description":%q}`, i, padding),
		}
	}
	last := tools[most-1]
	for _, c := range []struct{ name, template, call string }{
		{toolcalls.Hermes, "", "\xff<tool_call>\xff\n{\"name\": \"" + last.Name + "\", \"arguments\": {\"p511\":\"\"}}\n\xff</tool_call>\xff"},
		{toolcalls.Llama3, "", `{"name": "` + last.Name + `", "parameters": {"p511":""}}`},
		{toolcalls.Mistral, "", "\xff[TOOL_CALLS]\xff" + `[{"name": "` + last.Name + `", "arguments": {"p511":""}}]`},
		{toolcalls.Mistral, "[TOOL_CALLS] [", "\xff[TOOL_CALLS]\xff" + ` [{"name": "` + last.Name + `", "arguments": {"p511":""}}]`},
		{toolcalls.Mistral, "[ARGS]", "\xff[TOOL_CALLS]\xff" + last.Name + "\xff[ARGS]\xff" + `{"p511":""}`},
	} {
		format, _ := toolcalls.Of(c.name, c.template)
		for _, required := range []bool{true, false} {
			form, err := grammar.Compile(t.Context(), &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{
				StructuralTags: format.Tags(tools, required, false, format.Markers()),
			}}, nil)
			if err != nil {
				t.Errorf("%s, required %v: %v", c.name, required, err)
			} else if !form.Accepts([]byte(c.call)) {
				t.Errorf("%s, required %v: %s is not accepted", c.name, required, c.call)
			}
		}
	}
}
