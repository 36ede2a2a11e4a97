package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

const (
	disaggregated = inferencev1.Mode_MODE_DISAGGREGATED
	aggregated    = inferencev1.Mode_MODE_AGGREGATED
)

// timeout ends what a test waits for.
const timeout = clustertest.Timeout

func generate(t testing.TB, m *clustertest.Client, request *inferencev1.GenerateRequest) clustertest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	r, err := m.Generate(ctx, request)
	if err != nil {
		t.Fatalf("generate: %v", err)
	}
	return r
}

func request(prompt string, maxTokens uint32, temperature float32, mode inferencev1.Mode) *inferencev1.GenerateRequest {
	return &inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_Prompt{Prompt: prompt},
		MaxTokens: proto.Uint32(maxTokens),
		Sampling:  &inferencev1.Sampling{Temperature: proto.Float32(temperature), Seed: proto.Uint64(7)},
		Mode:      mode,
	}
}

// longPrompt is some hundred tokens: several blocks and, with the chunks of
// smallChunks, several chunks.
func longPrompt(salt int) string {
	return fmt.Sprintf("Tale %d. ", salt) + strings.Repeat("Once upon a time there was a king who had three daughters, and the youngest was fair. ", 9)
}

func smallChunks(o *mesh.UpOptions) {
	o.Prefill.ChunkTokens = 64
	o.Decode.ChunkTokens = 32
	o.PrefillWorkers, o.DecodeWorkers = 2, 2
}

// Same tokens: disaggregated or on one worker, alone or among others, in one
// chunk or many, with or without a prefix hit.
func TestSameTokens(t *testing.T) {
	whole := clustertest.Start(t, nil)
	chunked := clustertest.Start(t, smallChunks)
	prompts := []string{"Once upon a time", "a", longPrompt(1), longPrompt(2)}
	for _, temperature := range []float32{0, 0.8} {
		var want [][]uint32
		for _, prompt := range prompts {
			want = append(want, generate(t, whole.Client, request(prompt, 60, temperature, aggregated)).Tokens)
		}
		for name, m := range map[string]*clustertest.Client{"one chunk": whole.Client, "many chunks": chunked.Client} {
			for _, mode := range []inferencev1.Mode{disaggregated, aggregated} {
				for i, prompt := range prompts {
					for _, again := range []string{"first", "after the same prefix"} {
						r := generate(t, m, request(prompt, 60, temperature, mode))
						if !slices.Equal(r.Tokens, want[i]) {
							t.Errorf("%s, %v, temperature %v, prompt %d, %s: %v, want %v", name, mode, temperature, i, again, r.Tokens, want[i])
						}
						checkRoute(t, r, mode)
					}
				}
			}
			sameTokensTogether(t, m, prompts, want, temperature)
			m.AwaitIdle(t)
		}
	}
}

// sameTokensTogether sends eight requests at once.
func sameTokensTogether(t *testing.T, m *clustertest.Client, prompts []string, want [][]uint32, temperature float32) {
	t.Helper()
	var together sync.WaitGroup
	for i := range 8 {
		together.Go(func() {
			mode := []inferencev1.Mode{disaggregated, aggregated}[i%2]
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r, err := m.Generate(ctx, request(prompts[i%len(prompts)], 60, temperature, mode))
			if err != nil || !slices.Equal(r.Tokens, want[i%len(prompts)]) {
				t.Errorf("among others, %v, temperature %v, prompt %d: %v (%v), want %v", mode, temperature, i%len(prompts), r.Tokens, err, want[i%len(prompts)])
			}
		})
	}
	together.Wait()
}

func checkRoute(t *testing.T, r clustertest.Result, mode inferencev1.Mode) {
	t.Helper()
	route := r.Finished.GetRoute()
	if route.GetMode() != mode || route.GetReason() == "" || !route.GetReproducible() {
		t.Errorf("asked for %v: route %v", mode, route)
	}
	if apart := route.GetPrefill() != route.GetDecode(); apart != (mode == disaggregated) {
		t.Errorf("asked for %v: prefill on %s, decode on %s", mode, route.GetPrefill(), route.GetDecode())
	}
}

// A prefix that was computed before is found again, on the prefill worker and,
// for what was sent before, on the decode worker.
func TestPrefixIsFoundAgain(t *testing.T) { prefixIsFoundAgain(t, clustertest.Start(t, nil).Client) }

func prefixIsFoundAgain(t *testing.T, m *clustertest.Client) {
	for _, mode := range []inferencev1.Mode{disaggregated, aggregated} {
		prompt := longPrompt(int(mode) + 10)
		first := generate(t, m, request(prompt, 4, 0, mode))
		if cached := first.Finished.GetUsage().GetCachedTokens(); cached >= 32 {
			t.Errorf("%v: %d tokens cached of a new prompt", mode, cached)
		}
		// A worker that was slow for a moment is avoided. So it may take more than a second
		// request until one comes to a worker that has the prompt.
		computed := map[string]bool{first.Finished.GetRoute().GetPrefill(): true}
		again := generate(t, m, request(prompt, 4, 0, mode))
		for !computed[again.Finished.GetRoute().GetPrefill()] {
			computed[again.Finished.GetRoute().GetPrefill()] = true
			again = generate(t, m, request(prompt, 4, 0, mode))
		}
		if usage := again.Finished.GetUsage(); usage.GetCachedTokens() < usage.GetPromptTokens()-33 {
			t.Errorf("%v: %d of %d tokens cached the second time", mode, usage.GetCachedTokens(), usage.GetPromptTokens())
		}
		salted := request(prompt, 4, 0, mode)
		salted.CacheSalt = "mine"
		if s := generate(t, m, salted); s.Finished.GetUsage().GetCachedTokens() != 0 || !slices.Equal(s.Tokens, again.Tokens) {
			t.Errorf("%v: with a salt of its own %d tokens cached", mode, s.Finished.GetUsage().GetCachedTokens())
		}
	}
}

// One token, and a first token that ends the text, work in both modes and leave
// nothing behind.
func TestFirstTokenIsTheLast(t *testing.T) { firstTokenIsTheLast(t, clustertest.Start(t, nil).Client) }

func firstTokenIsTheLast(t *testing.T, m *clustertest.Client) {
	for _, mode := range []inferencev1.Mode{disaggregated, aggregated} {
		for range 5 {
			r := generate(t, m, request("Once upon a time", 1, 0, mode))
			if len(r.Tokens) != 1 || r.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_LENGTH {
				t.Fatalf("%v: max_tokens 1 gave %v, %v", mode, r.Tokens, r.Finished.GetReason())
			}
			checkRoute(t, r, mode)
			stopped := request("Once upon a time", 50, 0, mode)
			stopped.StopTokenIds = r.Tokens
			if s := generate(t, m, stopped); !slices.Equal(s.Tokens, r.Tokens) || s.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP {
				t.Fatalf("%v: a first token that stops gave %v, %v", mode, s.Tokens, s.Finished.GetReason())
			}
			text := request("Once upon a time", 50, 0, mode)
			text.Stop = []string{r.Text}
			if s := generate(t, m, text); s.Text != "" || s.Finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP || s.Finished.GetStop() != r.Text {
				t.Fatalf("%v: stop text %q gave %q, %v", mode, r.Text, s.Text, s.Finished)
			}
		}
	}
	m.AwaitIdle(t)
}
