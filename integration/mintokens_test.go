package integration_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// Nothing ends an answer before min_tokens: neither tokens that end it, nor texts. Its tokens are
// the same disaggregated, on one worker, and gone on with after any token, drawn by locally typical
// sampling or the likeliest.
func TestMinTokens(t *testing.T) {
	const least, most = 20, 60
	m := clustertest.Start(t, nil).Client
	for _, temperature := range []float32{0, 0.9} {
		ask := func(mode inferencev1.Mode) *inferencev1.GenerateRequest {
			q := request("Once upon a time", most, temperature, mode)
			q.Sampling.TopP, q.Sampling.TypicalP = proto.Float32(0.95), proto.Float32(0.9) // said, so that a worker is told the same without a router
			q.IgnoreEos = true
			return q
		}
		free := generate(t, m, ask(aggregated))
		ends := slices.Compact(slices.Sorted(slices.Values(free.Tokens[2:12]))) // that the model likes
		held := func(mode inferencev1.Mode) *inferencev1.GenerateRequest {
			q := ask(mode)
			q.StopTokenIds, q.MinTokens = ends, least
			return q
		}
		early := held(aggregated)
		early.MinTokens = 0
		if a := generate(t, m, early); len(a.Tokens) > 3 {
			t.Fatalf("temperature %v: %d tokens before one of %v", temperature, len(a.Tokens), ends)
		}
		want := generate(t, m, held(aggregated))
		if len(want.Tokens) < least {
			t.Errorf("temperature %v: %d tokens", temperature, len(want.Tokens))
		}
		for i, token := range want.Tokens {
			if end := slices.Contains(ends, token); end && i < least || end != (i == len(want.Tokens)-1 && len(want.Tokens) < most) {
				t.Errorf("temperature %v: token %d of %d is %d, which is an end: %v", temperature, i, len(want.Tokens), token, end)
			}
		}
		apart := generate(t, m, held(disaggregated))
		checkRoute(t, apart, disaggregated)
		if !slices.Equal(apart.Tokens, want.Tokens) {
			t.Errorf("temperature %v: disaggregated %v, on one worker %v", temperature, apart.Tokens, want.Tokens)
		}
		for _, generated := range []int{1, least - 1, len(want.Tokens) - 1} {
			var rest []uint32
			restOf(t, m, held(aggregated), want.Tokens, generated, ends, func(e *workerv1.Tokens) error {
				rest = append(rest, e.GetTokenIds()...)
				return nil
			})
			if !slices.Equal(rest, want.Tokens[generated:]) {
				t.Errorf("temperature %v: gone on with after %d tokens: %v, want %v", temperature, generated, rest, want.Tokens[generated:])
			}
		}
		text := ask(disaggregated)
		text.Stop, text.MinTokens = []string{"e"}, least
		if a := generate(t, m, text); len(a.Tokens) <= least || strings.Count(a.Text, "e") == 0 || !strings.HasPrefix(free.Text, a.Text+"e") {
			t.Errorf("temperature %v: %d tokens, %q, of %q", temperature, len(a.Tokens), a.Text, free.Text)
		}
	}
	// A complete output of a form ends, for nothing else may come after it.
	q := structured(0.9, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"yes", "no"}}}})
	q.MinTokens = 100
	if a := generate(t, m, q); a.Text != "yes" && a.Text != "no" {
		t.Errorf("chose %q", a.Text)
	}
	// One that can go on does.
	q = structured(0.9, disaggregated, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "[a-z ]+"}})
	q.MinTokens = 100
	if a := generate(t, m, q); len(a.Tokens) < 100 {
		t.Errorf("%d tokens: %q", len(a.Tokens), a.Text)
	}
	// The likeliest token is what top_p of 0 takes, at any temperature.
	q = request("Once upon a time", 30, 1.5, disaggregated)
	q.Sampling.TopP = proto.Float32(0)
	if a, greedy := generate(t, m, q), generate(t, m, request("Once upon a time", 30, 0, aggregated)); !slices.Equal(a.Tokens, greedy.Tokens) {
		t.Errorf("top_p 0 gives %v, the likeliest are %v", a.Tokens, greedy.Tokens)
	}
	m.AwaitIdle(t)
}
