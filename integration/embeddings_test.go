package integration_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// vectorOf is the vector of tokens, made by an engine of its own in one step. That its hidden
// states are right is tested where the engine is.
func vectorOf(t *testing.T, e engine.Engine, tokens []uint32) []float32 {
	t.Helper()
	s := engine.Sequence{Pooling: engine.NewPooling(e.Model().HiddenSize), Sample: &engine.Sample{Params: sampler.Params{}}}
	for _, token := range tokens {
		s.Tokens = append(s.Tokens, int32(token))
	}
	for b := range e.Capacity().Blocks {
		s.Blocks = append(s.Blocks, kvcache.BlockID(b))
	}
	if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}}); err != nil {
		t.Fatal(err)
	}
	vector := s.Pooling.Mean()
	length := 0.0
	for _, x := range vector {
		length += float64(x) * float64(x)
	}
	for i, x := range vector {
		vector[i] = float32(float64(x) / math.Sqrt(length))
	}
	return vector
}

func textInput(text string) *inferencev1.EmbedInput {
	return &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_Text{Text: text}}
}

// The vectors of texts are those of their tokens computed alone and at once, bit for bit: however
// many come together, beside what generates, in chunks, and whatever prefixes are cached.
func TestEmbeddings(t *testing.T) {
	m, err := model.Open("../models/fable", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	weights, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	e, err := weights.NewEngine(cpu.Config{Blocks: 16, MaxBatchTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.Close()
		_ = weights.Close()
	})
	mesh := clustertest.Start(t, func(o *mesh.UpOptions) {
		smallChunks(o)
		o.HTTP = "127.0.0.1:0"
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	texts := []string{"Once upon a time", "a", longPrompt(1), "The fox and the crane. ", longPrompt(2), longPrompt(1)}
	generate(t, mesh.Client, request(texts[2], 4, 0, aggregated)) // its prefix is cached now
	q := &inferencev1.EmbedRequest{}
	var want [][]float32
	var tokens []uint32
	for _, text := range texts {
		r, err := mesh.Inference.Tokenize(ctx, &inferencev1.TokenizeRequest{Text: text})
		if err != nil {
			t.Fatal(err)
		}
		tokens = r.GetTokenIds()
		want = append(want, vectorOf(t, e, tokens))
		q.Inputs = append(q.Inputs, textInput(text))
	}
	q.Inputs = append(q.Inputs, &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: tokens}}})
	want = append(want, want[len(want)-1])
	beside := clustertest.StartLoad(t, mesh.Client, 2, []clustertest.Ask{askFor(t, mesh.Client, "In a far land ", 30)})
	for range 3 {
		got, err := mesh.Inference.Embed(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		if got.GetModel() != "fable" || got.GetSystemFingerprint() == "" || len(got.GetEmbeddings()) != len(want) {
			t.Fatalf("%s %q %d", got.GetModel(), got.GetSystemFingerprint(), len(got.GetEmbeddings()))
		}
		for i, v := range got.GetEmbeddings() {
			if !slices.Equal(v.GetValues(), want[i]) {
				t.Errorf("input %d: %v, want %v", i, v.GetValues()[:4], want[i][:4])
			}
		}
		if n := got.GetEmbeddings()[6].GetTokens(); int(n) != len(tokens) {
			t.Errorf("%d tokens, want %d", n, len(tokens))
		}
	}
	beside.Stop(t)
	mesh.AwaitIdle(t)

	post := func(format string) (list struct {
		Data []struct {
			Embedding json.RawMessage
		}
		Usage map[string]int
	}) {
		t.Helper()
		body := fmt.Sprintf(`{"input":["a",%q],"model":"fable","dimensions":%d,"encoding_format":%q}`, texts[0], e.Model().HiddenSize, format)
		r, err := http.Post("http://"+mesh.Up.HTTP+"/v1/embeddings", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		said, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%d %s, %v", r.StatusCode, said, err)
		}
		if err := json.Unmarshal(said, &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	floats, encoded := post("float"), post("base64")
	var numbers []float32
	var text string
	if err := json.Unmarshal(floats.Data[1].Embedding, &numbers); err != nil || !slices.Equal(numbers, want[0]) {
		t.Errorf("over HTTP: %v, %v", numbers, err)
	}
	if err := json.Unmarshal(encoded.Data[1].Embedding, &text); err != nil {
		t.Error(err)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	for i, x := range want[0] {
		if err != nil || len(raw) != 4*len(want[0]) || binary.LittleEndian.Uint32(raw[4*i:]) != math.Float32bits(x) {
			t.Fatalf("in base64, %d bytes: %v", len(raw), err)
		}
	}
	if n := floats.Usage["prompt_tokens"]; n != 7 || floats.Usage["total_tokens"] != n {
		t.Errorf("usage %v", floats.Usage)
	}
}

// askFor is a request with the answer that a mesh gives to it.
func askFor(t *testing.T, m *clustertest.Client, prompt string, maxTokens uint32) clustertest.Ask {
	t.Helper()
	q := request(prompt, maxTokens, 0.8, disaggregated)
	r := generate(t, m, q)
	return clustertest.Ask{Request: q, Tokens: r.Tokens, Text: r.Text}
}

func TestEmbeddingsRefused(t *testing.T) {
	m := clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Engine.Name, o.Engine.Simulated.StepTime.BaseMs = engines.Simulated, 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for _, c := range []struct {
		name   string
		inputs []*inferencev1.EmbedInput
		words  string
	}{
		{"nothing", nil, "inputs: has 0 texts"},
		{"too many", make([]*inferencev1.EmbedInput, 2049), "inputs: has 2049 texts"},
		{"empty", []*inferencev1.EmbedInput{textInput("")}, "inputs[0].text: is empty"},
		{"too long", []*inferencev1.EmbedInput{textInput(strings.Repeat("king ", 4000))}, "maximum context length"},
		{"no token", []*inferencev1.EmbedInput{{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: []uint32{1 << 30}}}}}, "inputs[0].token_ids.ids[0]"},
		{"an engine without hidden states", []*inferencev1.EmbedInput{textInput("a")}, "gives no hidden states"},
	} {
		_, err := m.Inference.Embed(ctx, &inferencev1.EmbedRequest{Inputs: c.inputs})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	m.AwaitIdle(t)
}

// Texts are embedded while the workers that do it die: others do it again, with the same vectors.
func TestEmbeddingsSurviveWorkers(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	m := clustertest.StartProcesses(t, clustertest.Build(t), 2, 2)
	for _, role := range []controlv1.Role{prefillRole, decodeRole} {
		m.Router().AwaitPool(t, role, 2)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	q := &inferencev1.EmbedRequest{}
	for i := range 100 {
		q.Inputs = append(q.Inputs, textInput(longPrompt(i)))
	}
	want, err := m.Router().Inference.Embed(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var got *inferencev1.EmbedResponse
		embedded := make(chan error, 1)
		go func() {
			var err error
			got, err = m.Router().Inference.Embed(ctx, q)
			embedded <- err
		}()
		m.Kill(t, m.Router().Busiest(t, decodeRole))
		if err := <-embedded; err != nil {
			t.Fatal(err)
		}
		for i, v := range got.GetEmbeddings() {
			if !slices.Equal(v.GetValues(), want.GetEmbeddings()[i].GetValues()) {
				t.Errorf("input %d: %v, want %v", i, v.GetValues()[:4], want.GetEmbeddings()[i].GetValues()[:4])
			}
		}
		m.Scale(t, decodeRole, 2)
		m.Router().AwaitPool(t, decodeRole, 2)
	}
}
