package integration_test

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
)

// heroTool is a function whose arguments are a hero.
const heroTool = `{"type":"function","function":{"name":"call_hero","parameters":` + heroSchema + `}}`

func withTools(temperature float32, mode inferencev1.Mode, choice *inferencev1.ToolChoice) *inferencev1.GenerateRequest {
	q := structured(temperature, mode, nil)
	q.MaxTokens = proto.Uint32(300)
	q.Input = &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
		Messages: []*inferencev1.Message{{Role: "user", Content: "Once upon a time there was a hero: "}}, ToolsJson: []string{heroTool}, ToolChoice: choice,
	}}
	return q
}

// heroes are the arguments of the calls in a text.
func heroes(t *testing.T, format, text string) (out []hero, content string) {
	t.Helper()
	f, is := toolcalls.Of(format, "")
	if !is {
		t.Fatalf("no format %q", format)
	}
	p := f.NewParser([]string{"call_hero"}, true)
	for _, e := range slices.Concat(p.Add(text), p.Finish()) {
		switch e.Kind {
		case toolcalls.Text:
			content += e.Text
		case toolcalls.Arguments:
			var h hero
			if err := json.Unmarshal([]byte(e.Text), &h); err != nil {
				t.Fatalf("%q: %v", e.Text, err)
			}
			out = append(out, h)
		}
	}
	return out, content
}

// Calls that the bundled model has to make obey the parameters of their tool, in each format,
// and are the same disaggregated, on one worker, and gone on with after any token.
func TestToolCalls(t *testing.T) {
	for _, format := range toolcalls.Names() {
		m := clustertest.Start(t, func(o *mesh.UpOptions) { o.ToolCallParser = format }).Client
		q := func(mode inferencev1.Mode) *inferencev1.GenerateRequest {
			return withTools(0.9, mode, &inferencev1.ToolChoice{Required: true, Single: true})
		}
		want := generate(t, m, q(aggregated))
		calls, content := heroes(t, want.Accepted.GetToolCallFormat(), want.Text)
		if len(calls) != 1 || content != "" || want.Accepted.GetToolCallFormat() != format || want.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP {
			t.Fatalf("%s: %q, %v", format, want.Text, want.Finished)
		}
		calls[0].check(t)
		apart := generate(t, m, q(disaggregated))
		checkRoute(t, apart, disaggregated)
		if !slices.Equal(apart.Tokens, want.Tokens) {
			t.Errorf("%s: disaggregated %q, on one worker %q", format, apart.Text, want.Text)
		}
		m.AwaitIdle(t)
	}
}

// With a choice of its own the model writes what it would write, but for calls: the same tokens
// as without tools, and the same when another worker goes on after any of them.
func TestToolsAuto(t *testing.T) {
	m := clustertest.Start(t, func(o *mesh.UpOptions) { o.ToolCallParser = toolcalls.Hermes }).Client
	free := withTools(0.9, aggregated, nil)
	free.GetConversation().ToolsJson = nil
	free.MaxTokens = proto.Uint32(80)
	want := generate(t, m, free)
	q := withTools(0.9, aggregated, &inferencev1.ToolChoice{})
	q.MaxTokens = proto.Uint32(80)
	if got := generate(t, m, q); !slices.Equal(got.Tokens, want.Tokens) {
		t.Errorf("with tools %q, without %q", got.Text, want.Text)
	}
	// A call that has begun goes on as one. The prompt ends within the marker of one.
	for _, generated := range []int{1, 40} {
		var rest []uint32
		q := structured(0.9, aggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: &inferencev1.StructuralTags{
			Triggers: []string{"the"}, Tags: []*inferencev1.StructuralTag{{Begin: "the hero ", JsonSchema: heroSchema, End: "."}}, Repeats: true,
		}}})
		want := generate(t, m, q)
		if len(want.Tokens) <= generated {
			t.Fatalf("%q is too short", want.Text)
		}
		restOf(t, m, q, want.Tokens, generated, want.Tokens[len(want.Tokens)-1:], func(e *workerv1.Tokens) error {
			rest = append(rest, e.GetTokenIds()...)
			return nil
		})
		if !slices.Equal(rest, want.Tokens[generated:]) {
			t.Errorf("gone on with after %d tokens: %v, want %v", generated, rest, want.Tokens[generated:])
		}
	}
	m.AwaitIdle(t)
}

// With tools and a form, an answer is calls, or has the form.
func TestToolsOrAForm(t *testing.T) {
	tok, err := rigTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range toolcalls.Names() {
		m := clustertest.Start(t, func(o *mesh.UpOptions) { o.ToolCallParser = format }).Client
		calls, forms := 0, 0
		for seed := range uint64(12) {
			q := withTools(2, aggregated, &inferencev1.ToolChoice{Single: true})
			q.Sampling.Seed = &seed
			if seed%2 == 0 { // the model hardly ever begins a call by itself
				start := map[string]string{toolcalls.Hermes: "<", toolcalls.Mistral: "["}[format]
				q.Sampling.LogitBias = map[uint32]float32{uint32(tok.Encode(cmp.Or(start, "{"), false)[0]): 100}
			}
			q.StructuredOutput = ofSchema(`{"enum":["<tool_call>","[TOOL_CALLS]",1]}`)
			got := generate(t, m, q)
			made, content := heroes(t, got.Accepted.GetToolCallFormat(), got.Text)
			switch {
			case len(made) == 1 && content == "":
				made[0].check(t)
				calls++
			case len(made) == 0 && slices.Contains([]string{`"<tool_call>"`, `"[TOOL_CALLS]"`, "1"}, content):
				forms++
			default:
				t.Errorf("%s: %q", format, got.Text)
			}
		}
		if calls == 0 || forms == 0 {
			t.Errorf("%s: %d calls, %d answers without", format, calls, forms)
		}
		q := withTools(0.9, aggregated, &inferencev1.ToolChoice{Required: true, Single: true})
		want := generate(t, m, q)
		q.StructuredOutput = ofSchema(`{"type":"null"}`)
		if got := generate(t, m, q); !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("%s: where a call is required a form changes it: %q, not %q", format, got.Text, want.Text)
		}
		m.AwaitIdle(t)
	}
}

// What tools cannot be is refused before anything is computed.
func TestToolsRefused(t *testing.T) {
	m := clustertest.Start(t, nil).Client
	for _, c := range []struct {
		name, field string
		bad         func(*inferencev1.GenerateRequest, *inferencev1.Conversation)
	}{
		{"a format that nobody knows", "conversation.tool_choice", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) { c.ToolChoice.Required = false }},
		{"no tools", "conversation.tool_choice", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) { c.ToolsJson = nil }},
		{"another function", "conversation.tool_choice", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) {
			c.ToolChoice.Functions = []string{"x"}
		}},
		{"a wrong form", "structured_output.json_schema", func(q *inferencev1.GenerateRequest, _ *inferencev1.Conversation) {
			q.StructuredOutput = ofSchema(`{"not":{}}`)
		}},
		{"tags of its own", "structured_output.structural_tags", func(q *inferencev1.GenerateRequest, _ *inferencev1.Conversation) {
			q.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_StructuralTags{StructuralTags: &inferencev1.StructuralTags{}}}
		}},
		{"no end", "ignore_eos", func(q *inferencev1.GenerateRequest, _ *inferencev1.Conversation) { q.IgnoreEos = true }},
		{"a name", "conversation.tools[1].function.name", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) {
			c.ToolsJson = append(c.ToolsJson, `{"type":"function","function":{"name":"a b"}}`)
		}},
		{"a name twice", "conversation.tools[1].function.name", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) {
			c.ToolsJson = append(c.ToolsJson, heroTool)
		}},
		{"a keyword of a strict tool", "conversation.tools[1].function.parameters", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) {
			c.ToolsJson = append(c.ToolsJson, `{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","not":{}}}}`)
		}},
		{"no object", "conversation.tools[0].function.parameters", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) {
			c.ToolsJson = []string{`{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}`}
		}},
		{"no JSON", "conversation.tools[0]", func(_ *inferencev1.GenerateRequest, c *inferencev1.Conversation) { c.ToolsJson = []string{`{`} }},
	} {
		q := withTools(0, aggregated, &inferencev1.ToolChoice{Required: true})
		c.bad(q, q.GetConversation())
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err := m.Generate(ctx, q)
		cancel()
		if status.Code(err) != codes.InvalidArgument || rpc.Field(err) != c.field {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	m.AwaitIdle(t)
}
