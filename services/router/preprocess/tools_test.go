package preprocess_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// withSpecial is the bundled model's tokenizer with special tokens more.
func withSpecial(t *testing.T, names ...string) *tokenizer.Tokenizer {
	t.Helper()
	data, err := os.ReadFile("../../../models/fable/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	added, _ := file["added_tokens"].([]any)
	next := len(file["model"].(map[string]any)["vocab"].(map[string]any)) + len(added)
	for i, name := range names {
		added = append(added, map[string]any{"id": next + i, "content": name, "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false})
	}
	file["added_tokens"] = added
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := tokenizer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A grammar has space for as many tools as a conversation may have, in each format of calls.
func TestMostTools(t *testing.T) {
	tok := withSpecial(t)
	for _, format := range toolcalls.Names() {
		template, err := chat.Parse("t", "{{ messages[0].content }}", nil)
		if err != nil {
			t.Fatal(err)
		}
		models, err := preprocess.NewModels([]preprocess.Model{{
			Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template, ToolCallParser: format,
		}}, preprocess.GenerationConfigNone, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for tools, want := range map[int]string{512: "", 513: "conversation.tools"} {
			c := &inferencev1.Conversation{Messages: []*inferencev1.Message{{Role: "user", Content: "Well?"}}, ToolChoice: &inferencev1.ToolChoice{}}
			for i := range tools {
				c.ToolsJson = append(c.ToolsJson, fmt.Sprintf(`{"type":"function","function":{"name":"f%d"}}`, i))
			}
			_, err := models.Plan(t.Context(), time.Now(), &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: c}}, nil)
			if rpc.Field(err) != want || want == "" && err != nil {
				t.Errorf("%s: %d tools: %v", format, tools, err)
			}
		}
	}
}

// Where the marks of calls are special tokens of the vocabulary, those tokens are what the
// workers allow, and the text shows them, and no others.
func TestCallsWithSpecialTokens(t *testing.T) {
	tok := withSpecial(t, "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>", "<|other|>")
	for _, c := range []struct{ template, text string }{
		{"[TOOL_CALLS] [ARGS]", "Well.[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}"},
		{"[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\", \"arguments\": {}}]"},
		{"<tool_call>", "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"},
		{"<|python_tag|>", "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}"},
	} {
		template, err := chat.Parse("t", "{{ messages[0].content }}{# "+c.template+" #}", nil)
		if err != nil {
			t.Fatal(err)
		}
		size := tok.VocabSize()
		models, err := preprocess.NewModels([]preprocess.Model{{
			Spec: model.Spec{Name: "m", VocabSize: size, ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template,
		}}, preprocess.GenerationConfigNone, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := models.Plan(t.Context(), time.Now(), &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
			Messages: []*inferencev1.Message{{Role: "user", Content: "Well?"}}, ToolChoice: &inferencev1.ToolChoice{},
			ToolsJson: []string{`{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}}`, `{"type":"function","function":{"name":"g"}}`},
		}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		vocabulary, err := grammar.NewVocabulary(size, func(id int32) []byte {
			if tok.IsSpecial(id) {
				return nil
			}
			return tok.TokenBytes(id)
		})
		if err != nil {
			t.Fatal(err)
		}
		for id := range int32(size) {
			if tok.IsSpecial(id) {
				vocabulary.NameSpecial(id, string(tok.TokenBytes(id)))
			}
		}
		form, err := grammar.Compile(t.Context(), plan.Structured, vocabulary)
		if err != nil {
			t.Fatal(err)
		}
		ids := tok.Encode(c.text, false)
		constraint, stream := form.Constrain([]int32{1}), tok.NewStreamAfter(plan.Tokens, true)
		stream.Show(plan.Shown)
		text := ""
		for i, id := range ids {
			mask := constraint.Allowed(ids[:i])
			if int(id>>6) >= len(mask) || mask[id>>6]&(1<<(id&63)) == 0 {
				t.Fatalf("%q: token %q is not allowed behind %q", c.text, tok.TokenBytes(id), text)
			}
			text += stream.Next(id)
		}
		if other, _ := tok.TokenID("<|other|>"); stream.Next(other) != "" {
			t.Error("another special token is shown")
		}
		if text += stream.Flush(); text != c.text {
			t.Errorf("%q is shown as %q", c.text, text)
		}
		format, _ := toolcalls.Of(plan.ToolCalls, "")
		p := format.NewParser([]string{"f", "g"}, true)
		if events := slices.Concat(p.Add(text), p.Finish()); p.Calls() == 0 {
			t.Errorf("%q: %v", text, events)
		}
	}
}

// Where tools are not strict, the keywords that no worker can enforce are named, and the rest is
// enforced; with strict they are refused.
func TestToolsWithAnnotations(t *testing.T) {
	tok := withSpecial(t)
	template, err := chat.Parse("t", "{{ messages[0].content }}{# <tool_call> #}", nil)
	if err != nil {
		t.Fatal(err)
	}
	models, err := preprocess.NewModels([]preprocess.Model{{
		Spec: model.Spec{Name: "m", VocabSize: tok.VocabSize(), ContextTokens: 1000, EOS: []int32{1}}, Tokenizer: tok, Chat: template,
	}}, preprocess.GenerationConfigNone, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	const schema = `{"type":"object","properties":{"u":{"type":"string","format":"uri","maxLength":3}},"required":["u"],"additionalProperties":false,"x-order":1}`
	plan := func(choice *inferencev1.ToolChoice, strict string, otherwise *inferencev1.StructuredOutput) (*preprocess.Plan, error) {
		return models.Plan(t.Context(), time.Now(), &inferencev1.GenerateRequest{StructuredOutput: otherwise, Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
			Messages: []*inferencev1.Message{{Role: "user", Content: "Well?"}}, ToolChoice: choice,
			ToolsJson: []string{`{"type":"function","function":{"name":"f","parameters":` + schema + `}}`, `{"type":"function","function":{"name":"g","parameters":` + schema + strict + `}}`},
		}}}, nil)
	}
	for _, choice := range []*inferencev1.ToolChoice{{}, {Required: true}} {
		for _, strict := range []string{"", `,"strict":false`, `,"strict":null`} {
			p, err := plan(choice, strict, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"conversation.tools[].function.parameters.format=uri", "conversation.tools[].function.parameters.x-order"}; !slices.Equal(p.Ignored, want) {
				t.Errorf("%v: ignores %q", choice, p.Ignored)
			}
			form, err := grammar.Compile(t.Context(), p.Structured, nil)
			if err != nil {
				t.Fatal(err)
			}
			for arguments, want := range map[string]bool{`{"u":"abc"}`: true, `{"u":"abcd"}`: false, `{"u":"abc","v":1}`: false, `{}`: false} {
				call := "<tool_call>\n{\"name\": \"g\", \"arguments\": " + arguments + "}\n</tool_call>"
				if form.Accepts([]byte(call)) != want {
					t.Errorf("%v: %s is accepted: %v", choice, call, !want)
				}
			}
		}
		_, err := plan(choice, `,"strict":true`, nil)
		if field := rpc.Field(err); field != "conversation.tools[1].function.parameters" || !strings.Contains(err.Error(), "x-order: the keyword is not supported") {
			t.Errorf("%v, strict: %s, %v", choice, field, err)
		}
	}
	// The form of other answers is as strict as it is without tools.
	_, err = plan(new(inferencev1.ToolChoice), "", &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: schema}})
	if field := rpc.Field(err); field != "structured_output.json_schema" {
		t.Errorf("with a schema for other answers: %s, %v", field, err)
	}
}
