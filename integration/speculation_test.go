package integration_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// speculations are the ways to have decode workers guess tokens. Those of the draft model are with KV
// memory for few sequences.
func speculations() map[string]func(*mesh.UpOptions) {
	return map[string]func(*mesh.UpOptions){
		worker.SpeculateNgram: func(o *mesh.UpOptions) { o.Decode.Speculate = worker.SpeculateNgram },
		worker.SpeculateDraft: func(o *mesh.UpOptions) {
			o.Decode.Speculate, o.Decode.DraftModel, o.Decode.DraftKVMemory = worker.SpeculateDraft, draftModel, 1<<20
		},
	}
}

// draftModel guesses at what the bundled model draws.
const draftModel = "../models/fable-draft"

// speculativeRequests are such as speculation could change: greedy and drawn, with penalties,
// a bias, log probabilities, a stop string and a form, after texts that repeat themselves.
func speculativeRequests(mode inferencev1.Mode) map[string]*inferencev1.GenerateRequest {
	prompts := strings.Repeat("The fox saw the crow and the crow saw the fox. ", 6)
	all := map[string]*inferencev1.GenerateRequest{
		"greedy":   request(prompts, 90, 0, mode),
		"drawn":    request(prompts, 90, 0.7, mode),
		"long":     request(longPrompt(3), 120, 0, mode),
		"short":    request("Once upon a time", 60, 0, mode),
		"one":      request(prompts, 1, 0, mode),
		"two":      request(prompts, 2, 0, mode),
		"stop":     request(prompts, 90, 0, mode),
		"penalty":  request(prompts, 90, 0, mode),
		"bias":     request(prompts, 90, 0.5, mode),
		"logprobs": request(prompts, 60, 0, mode),
	}
	all["stop"].Stop = []string{"crow saw"}
	all["penalty"].Sampling.RepetitionPenalty = proto.Float32(1.05)
	all["penalty"].Sampling.FrequencyPenalty = proto.Float32(0.1)
	all["bias"].Sampling.LogitBias = map[uint32]float32{5: 1, 40: -100}
	all["logprobs"].Logprobs = proto.Uint32(3)
	all["schema"] = structured(0.9, mode, ofSchema(heroSchema))
	all["form"] = formed(0, mode)
	return all
}

// formed asks for at least 60 tokens of a form in which the same ones come again and again.
func formed(temperature float32, mode inferencev1.Mode) *inferencev1.GenerateRequest {
	q := structured(temperature, mode, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: "((the fox|the crow|a king) ){30,90}"}})
	q.Logprobs = proto.Uint32(5)
	return q
}

// TestSpeculationChangesNoToken: with speculation the same requests give the same tokens and
// log probabilities, also among others and where the KV came from a prefill worker, and some
// of the guesses were right.
func TestSpeculationChangesNoToken(t *testing.T) {
	plain := clustertest.Start(t, smallChunks)
	for name, speculates := range speculations() {
		t.Run(name, func(t *testing.T) {
			changesNoToken(t, plain, clustertest.Start(t, func(o *mesh.UpOptions) { smallChunks(o); speculates(o) }))
		})
	}
}

func changesNoToken(t *testing.T, plain, guessing *clustertest.InProcess) {
	var drafts, accepted uint32
	for _, mode := range []inferencev1.Mode{disaggregated, aggregated} {
		for name, r := range speculativeRequests(mode) {
			want, got := generate(t, plain.Client, r), generate(t, guessing.Client, r)
			if !slices.Equal(got.Tokens, want.Tokens) || got.Text != want.Text {
				t.Errorf("%v, %s: %v, without speculation %v", mode, name, got.Tokens, want.Tokens)
			}
			if got.Finished.GetReason() != want.Finished.GetReason() {
				t.Errorf("%v, %s: ended with %v, without speculation %v", mode, name, got.Finished.GetReason(), want.Finished.GetReason())
			}
			drafts += got.Finished.GetUsage().GetDraftTokens()
			accepted += got.Finished.GetUsage().GetAcceptedDraftTokens()
		}
	}
	// How many guesses there are depends on what steps take, so on a busy machine the first
	// right one may come late.
	for i := 0; accepted == 0 && i < 500; i++ {
		usage := generate(t, guessing.Client, request(strings.Repeat("the fox ", 60), 90, 0, aggregated)).Finished.GetUsage()
		drafts, accepted = drafts+usage.GetDraftTokens(), accepted+usage.GetAcceptedDraftTokens()
	}
	if accepted == 0 || accepted > drafts {
		t.Errorf("%d of %d guesses were right", accepted, drafts)
	}
	prompts := []string{"Once upon a time", "a", longPrompt(1), longPrompt(2)}
	for _, temperature := range []float32{0, 0.8} {
		var tokens [][]uint32
		for _, prompt := range prompts {
			tokens = append(tokens, generate(t, plain.Client, request(prompt, 60, temperature, aggregated)).Tokens)
			for _, q := range []*inferencev1.GenerateRequest{penalized(prompt, temperature, disaggregated), formed(temperature, disaggregated)} {
				want := mustAsk(t, plain.Client, q)
				if what := mustAsk(t, guessing.Client, q).differs(want); what != "" {
					t.Errorf("penalties and log probabilities, or a form, at temperature %v: %s", temperature, what)
				}
				testGoesOn(t, guessing.Client, q, want)
			}
		}
		sameTokensTogether(t, guessing.Client, prompts, tokens, temperature)
	}
	guessing.AwaitIdle(t)
}
