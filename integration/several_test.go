package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

// completions are the texts of a completion over HTTP.
func completions(t testing.TB, m *clustertest.InProcess, fields map[string]any) (out []string) {
	t.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+m.Up.HTTP+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var got struct {
		Error   any
		Choices []struct{ Text string }
	}
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil || got.Error != nil {
		t.Fatalf("%v, %v", err, got.Error)
	}
	for _, c := range got.Choices {
		out = append(out, c.Text)
	}
	return out
}

// Several answers to one prompt are those of as many requests with the next seeds, bit for bit:
// drawn, penalized, held to a form and cut early, with two workers or one for each request. The
// prompt is computed once and its KV sent once, but for the block that it does not fill.
func TestSeveralAnswersShareAPrompt(t *testing.T) {
	const n, seed = 8, 11
	for _, policy := range []string{"disaggregated", "aggregated", "slo"} {
		t.Run(policy, func(t *testing.T) {
			m := clustertest.Start(t, func(o *mesh.UpOptions) {
				o.HTTP, o.DecodeWorkers, o.Router.Routing.Policy = "127.0.0.1:0", 2, policy
			})
			for i, more := range []map[string]any{
				{"temperature": 0.9},
				{"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": true},
				{"temperature": 1.2, "guided_regex": "[A-Z][a-z ]{20,40}\\."},
				{"temperature": 0.9, "max_tokens": 1},
				{"temperature": 0.9, "prompt": "Once upon a time"},
			} {
				q := map[string]any{"prompt": longPrompt(i), "max_tokens": 24}
				for key, value := range more {
					q[key] = value
				}
				var want []string
				sent := received(t, m)
				for j := range n { // the salts keep them from sharing anything
					q["seed"], q["cache_salt"] = seed+j, fmt.Sprint(policy, i, j)
					want = append(want, completions(t, m, q)...)
				}
				q["seed"], q["cache_salt"], q["n"] = seed, fmt.Sprint(policy, i), n
				one := (received(t, m) - sent) / n
				sent = received(t, m)
				looked, hit := counted(t, m, lookups, ""), counted(t, m, hits, "")
				if got := completions(t, m, q); !slices.Equal(got, want) {
					t.Errorf("request %d: %q, one by one %q", i, got, want)
				}
				computed := counted(t, m, lookups, "") - looked - (counted(t, m, hits, "") - hit)
				// Once on either worker, and for each answer the block that the prompt does not fill.
				if most := 2*prompt(t, m, i) + 2*n*32; i < 3 && policy != "slo" && computed > most {
					t.Errorf("request %d: %d tokens computed or received, at most %d should be", i, computed, most)
				}
				if bytes := received(t, m) - sent; i < 3 && policy == "disaggregated" && bytes > one*5/2 { // one block of eight each
					t.Errorf("request %d: %d bytes sent, of one prompt %d", i, bytes, one)
				}
			}
			m.AwaitIdle(t)
		})
	}
}

// prompt is how many tokens a long prompt has.
func prompt(t *testing.T, m *clustertest.InProcess, i int) int {
	t.Helper()
	tokens, err := m.Inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: longPrompt(i)})
	if err != nil {
		t.Fatal(err)
	}
	return len(tokens.GetTokenIds())
}

const (
	lookups = "tandem_worker_prefix_cache_lookup_tokens_total"
	hits    = "tandem_worker_prefix_cache_hit_tokens_total"
)

// received is how many bytes of KV workers have received.
func received(t testing.TB, m *clustertest.InProcess) int {
	t.Helper()
	return counted(t, m, "tandem_kvtransfer_received_bytes_total", "")
}
