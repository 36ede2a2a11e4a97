package integration_test

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// hero is what the outputs of heroSchema are.
type hero struct {
	Name string   `json:"name"`
	Age  int      `json:"age"`
	Good bool     `json:"good"`
	Kind string   `json:"kind"`
	Has  []string `json:"has"`
}

const heroSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":2,"maxLength":12},"age":{"type":"integer","minimum":7,"maximum":99},
	"good":{"type":"boolean"},"kind":{"enum":["king","fox"]},"has":{"type":"array","items":{"type":"string","maxLength":6},"minItems":1,"maxItems":2}},
	"required":["name","age","good","kind","has"],"additionalProperties":false}`

func (h hero) check(t *testing.T) {
	t.Helper()
	if n := len([]rune(h.Name)); n < 2 || n > 12 || h.Age < 7 || h.Age > 99 || h.Kind != "king" && h.Kind != "fox" || len(h.Has) < 1 || len(h.Has) > 2 {
		t.Errorf("%+v is not of the schema", h)
	}
}

func structured(temperature float32, mode inferencev1.Mode, form *inferencev1.StructuredOutput) *inferencev1.GenerateRequest {
	q := request("Once upon a time there was a hero: ", 200, temperature, mode)
	q.Sampling.TopP = proto.Float32(0.9)
	q.StructuredOutput = form
	return q
}

func ofSchema(schema string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: schema}}
}

// What the bundled model says has the form that was asked for, and is the same disaggregated,
// where the prefill worker draws the first token, on one worker, and gone on with after any
// token, as when a worker died.
func TestStructuredOutput(t *testing.T) {
	m := clustertest.Start(t, nil).Client
	for _, temperature := range []float32{0, 0.9} {
		want := generate(t, m, structured(temperature, aggregated, ofSchema(heroSchema)))
		var h hero
		if err := json.Unmarshal([]byte(want.Text), &h); err != nil || want.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP {
			t.Fatalf("%q: %v, %v", want.Text, err, want.Finished)
		}
		h.check(t)
		apart := generate(t, m, structured(temperature, disaggregated, ofSchema(heroSchema)))
		checkRoute(t, apart, disaggregated)
		if !slices.Equal(apart.Tokens, want.Tokens) {
			t.Errorf("disaggregated %q, on one worker %q", apart.Text, want.Text)
		}
		for _, generated := range []int{1, 5, len(want.Tokens) - 1} {
			var rest []uint32
			stops := want.Tokens[len(want.Tokens)-1:]
			restOf(t, m, structured(temperature, aggregated, ofSchema(heroSchema)), want.Tokens, generated, stops, func(e *workerv1.Tokens) error {
				rest = append(rest, e.GetTokenIds()...)
				return nil
			})
			if !slices.Equal(rest, want.Tokens[generated:]) {
				t.Errorf("gone on with after %d tokens: %v, want %v", generated, rest, want.Tokens[generated:])
			}
		}
	}
	m.AwaitIdle(t)
}

// Other forms, and what is refused before anything is computed.
func TestStructuredForms(t *testing.T) {
	m := clustertest.Start(t, nil).Client
	choice := generate(t, m, structured(0.9, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"yes", "no", "no way"}}}}))
	if !slices.Contains([]string{"yes", "no", "no way"}, choice.Text) {
		t.Errorf("chose %q", choice.Text)
	}
	const expression = `(The|A) [a-zé]{3,8}, [0-9]{2}\.`
	text := generate(t, m, structured(0.9, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: expression}})).Text
	if !regexp.MustCompile("^(?:" + expression + ")$").MatchString(text) {
		t.Errorf("%q does not match", text)
	}
	const pairs = "root ::= pair{2}\npair ::= \"(\" (pair | [a-z ]{0,12}) \")\""
	text = generate(t, m, structured(0.9, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: pairs}})).Text
	if !regexp.MustCompile(`^\(+[a-z ]*\)+\(+[a-z ]*\)+$`).MatchString(text) || strings.Count(text, "(") != strings.Count(text, ")") {
		t.Errorf("%q is not two pairs of brackets", text)
	}
	q := structured(0.9, aggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}})
	q.MaxTokens = proto.Uint32(6)
	if cut := generate(t, m, q); !strings.HasPrefix(cut.Text, "{") || cut.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_LENGTH && !json.Valid([]byte(cut.Text)) {
		t.Errorf("cut to %q, %v", cut.Text, cut.Finished.GetReason())
	}
	for field, bad := range map[string]func(*inferencev1.GenerateRequest){
		"structured_output.json_schema": func(q *inferencev1.GenerateRequest) {
			q.StructuredOutput = ofSchema(`{"properties":{"a":{"not":{}}}}`)
		},
		"structured_output.regex": func(q *inferencev1.GenerateRequest) {
			q.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "("}}
		},
		"structured_output.choice.texts": func(q *inferencev1.GenerateRequest) {
			q.StructuredOutput = &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{}}
		},
		"structured_output.form": func(q *inferencev1.GenerateRequest) { q.StructuredOutput = &inferencev1.StructuredOutput{} },
		"ignore_eos":             func(q *inferencev1.GenerateRequest) { q.IgnoreEos = true },
	} {
		q := structured(0, aggregated, ofSchema(heroSchema))
		bad(q)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err := m.Generate(ctx, q)
		cancel()
		if status.Code(err) != codes.InvalidArgument || rpc.Field(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	m.AwaitIdle(t)
}

// A request whose form leaves no token ends with an error that says so.
func TestNoTokenOfTheForm(t *testing.T) {
	m := clustertest.Start(t, smallChunks).Client
	q := structured(0, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"ab"}}}})
	tokens, err := m.Inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: "ab a b", NoSpecialTokens: true})
	if err != nil {
		t.Fatal(err)
	}
	q.Sampling.LogitBias = map[uint32]float32{}
	for _, id := range tokens.GetTokenIds() {
		q.Sampling.LogitBias[id] = -100
	}
	for _, text := range []string{"a", "b", "ab"} {
		tokens, err := m.Inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: text, NoSpecialTokens: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range tokens.GetTokenIds() {
			q.Sampling.LogitBias[id] = -100
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if r, err := m.Generate(ctx, q); status.Code(err) != codes.InvalidArgument || rpc.Field(err) != "structured_output" {
		t.Errorf("%q, %v", r.Text, err)
	}
	m.AwaitIdle(t)
}
