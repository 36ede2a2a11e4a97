package integration_test

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// scores asks how likely the tokens of a prompt are.
func scores(t *testing.T, m *clustertest.Client, ids []uint32) (out []*inferencev1.TokenLogprobs) {
	t.Helper()
	q := request("", 3, 0, inferencev1.Mode_MODE_AUTO)
	q.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}}
	q.PromptLogprobs = proto.Uint32(3)
	stream, err := m.Inference.Generate(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		}
		if e := event.GetPromptLogprobs(); e != nil {
			if int(e.GetOffset()) != len(out) || !slices.Equal(e.GetTokenIds(), ids[len(out):len(out)+len(e.GetTokenIds())]) {
				t.Fatalf("tokens %v from %d on, after %d", e.GetTokenIds(), e.GetOffset(), len(out))
			}
			out = append(out, e.GetLogprobs()...)
		}
	}
}

// How likely a token of a prompt is, is what is said of it where it is generated: after the tokens
// before it, with a bias that has it drawn. That holds bit for bit, in one chunk or many, and again
// when the prompt is in prefix caches.
func TestPromptLogprobs(t *testing.T) {
	whole, chunked := clustertest.Start(t, nil), clustertest.Start(t, smallChunks)
	tokenized, err := whole.Client.Inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: longPrompt(3)})
	if err != nil {
		t.Fatal(err)
	}
	ids := tokenized.GetTokenIds()
	want := scores(t, whole.Client, ids)
	if len(want) != len(ids) || want[0].GetLogprob() != 0 || want[0].GetTop() != nil {
		t.Fatalf("of %d tokens %d: %v", len(ids), len(want), want)
	}
	for name, m := range map[string]*clustertest.Client{"again": whole.Client, "in chunks": chunked.Client} {
		for i, got := range scores(t, m, ids) {
			if !proto.Equal(got, want[i]) {
				t.Fatalf("%s, token %d: %v, want %v", name, i, got, want[i])
			}
		}
	}
	for _, at := range []int{1, 2, 31, 32, 33, 64, 100, len(ids) - 1} {
		q := request("", 1, 0, aggregated)
		q.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids[:at]}}
		q.Sampling.LogitBias, q.Logprobs = map[uint32]float32{ids[at]: 100}, proto.Uint32(3)
		stream, err := whole.Client.Inference.Generate(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for {
			event, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e := event.GetTokens(); e != nil {
				got := proto.CloneOf(want[at])
				got.Rank = 0
				if e.GetTokenIds()[0] != ids[at] || !proto.Equal(got, e.GetLogprobs()[0]) {
					t.Errorf("token %d of the prompt: %v, generated %v", at, got, e.GetLogprobs()[0])
				}
			}
		}
	}
	whole.AwaitIdle(t)
	chunked.AwaitIdle(t)
}
