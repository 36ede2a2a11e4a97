package workload_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// closeSource closes the trace of a source.
func closeSource(t fataler, source workload.Source) {
	closer, ok := source.(io.Closer)
	if !ok {
		t.Fatal("the source cannot be closed")
	}
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReplayAzure(t *testing.T) {
	path := write(t, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n2023-11-16 18:15:48,3000,2000\n2023-11-16 18:15:56,5,0\n")
	type request struct {
		due            time.Duration
		prompt, output int
	}
	for _, c := range []struct {
		args     string
		duration time.Duration
		want     []request
		warned   bool
	}{
		{"", 0, []request{{0, 100, 10}, {2 * time.Second, 2096, 2000}, {10 * time.Second, 5, 1}}, true},
		{"--speed=4 --trace-scale-lengths=0.1", 0, []request{{0, 10, 1}, {500 * time.Millisecond, 300, 200}, {2500 * time.Millisecond, 1, 1}}, false},
		{"", 2 * time.Second, []request{{0, 100, 10}, {2 * time.Second, 2096, 2000}}, true},
		{"--trace-limit=1", 0, []request{{0, 100, 10}}, false},
	} {
		params := server
		params.Rate, params.Duration = 0, c.duration
		source := sourceOf(t, params, append(strings.Fields(c.args), "--trace="+path)...)
		var got []request
		for _, q := range take(t, source, 10) {
			got = append(got, request{q.Due, len(q.Prompt.TokenIDs), q.MaxTokens})
		}
		warner, ok := source.(workload.Warner)
		if !slices.Equal(got, c.want) || !ok || (len(warner.Warnings()) > 0) != c.warned {
			t.Errorf("%q: %v, want %v", c.args, got, c.want)
		}
		closeSource(t, source)
	}
	params := server
	params.Concurrency = 2
	source := sourceOf(t, params, "--trace="+path)
	defer closeSource(t, source)
	if all := take(t, source, 10); len(all) != 3 || all[2].Due != 0 {
		t.Errorf("in closed loop: %d requests", len(all))
	}
}

// An error in the middle of a trace ends the run with its position.
// A trace ends with the last request that is used.
func TestTraceEnds(t *testing.T) {
	path := write(t, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n2023-11-16 18:15:48,3000,2000\n2023-11-16 18:15:56,5,0\n")
	for args, want := range map[string]time.Duration{
		"": 10 * time.Second, "--speed=4": 2500 * time.Millisecond, "--trace-limit=2": 2 * time.Second, "--trace-limit=1": 0, "--trace-limit=9": 10 * time.Second,
	} {
		spec := specOf(t, append(strings.Fields(args), "--trace="+path)...)
		if got, err := spec.TraceEnds(); got != want || err != nil {
			t.Errorf("%q: %v, %v, want %v", args, got, err, want)
		}
	}
}

func TestReplayMalformed(t *testing.T) {
	source := sourceOf(t, server, "--trace="+write(t, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\noops,1,1\n"))
	defer closeSource(t, source)
	if _, err := source.Next(); err != nil {
		t.Fatal(err)
	}
	var syntax *trace.SyntaxError
	if _, err := source.Next(); !errors.As(err, &syntax) || syntax.Line != 3 || syntax.Column != 1 {
		t.Errorf("error %v, want one at line 3", err)
	}
}

// common is the length of the prefix that two slices share.
func common[T comparable](a, b []T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Prompts of a Mooncake trace share whole blocks exactly where they share hash ids.
func TestMooncakeSharingProperty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]float64{1, 0.05, 1.0 / 32, 0.1}).Draw(t, "scale")
		kind := rapid.SampledFrom([]string{"ids", "text"}).Draw(t, "kind")
		vocabulary := rapid.SampledFrom([]int{16, 300, 128_000}).Draw(t, "vocabulary")
		// Conversations that branch: each prompt begins as an earlier one does.
		var hashes [][]uint64
		var lines strings.Builder
		fresh := uint64(0)
		for range rapid.IntRange(2, 8).Draw(t, "requests") {
			var ids []uint64
			if len(hashes) > 0 {
				base := hashes[rapid.IntRange(0, len(hashes)-1).Draw(t, "base")]
				ids = slices.Clone(base[:rapid.IntRange(0, len(base)).Draw(t, "shared")])
			}
			for range rapid.IntRange(1, 4).Draw(t, "own") {
				fresh++
				ids = append(ids, fresh)
			}
			hashes = append(hashes, ids)
			length := 512*len(ids) - rapid.IntRange(0, 511).Draw(t, "missing")
			encoded, err := json.Marshal(map[string]any{"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": ids})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(encoded, '\n'))
		}
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		source := sourceOf(t, workload.Params{VocabularySize: vocabulary}, "--trace="+path, "--prompt-kind="+kind, fmt.Sprintf("--trace-scale-lengths=%g", scale))
		defer closeSource(t, source)
		all := take(t, source, 100)
		size := int(math.Round(512 * scale))
		if kind == "text" {
			size *= 4
		}
		length := func(q *workload.Request) int { return len(q.Prompt.TokenIDs) + len(q.Prompt.Text) }
		for i, a := range all {
			if blocks := (length(a) + size - 1) / size; blocks != len(hashes[i]) {
				t.Fatalf("request %d has %d blocks for %d ids", i, blocks, len(hashes[i]))
			}
			for j, b := range all[:i] {
				shared := common(a.Prompt.TokenIDs, b.Prompt.TokenIDs)
				if kind == "text" {
					shared = common([]byte(a.Prompt.Text), []byte(b.Prompt.Text))
				}
				ids := common(hashes[i], hashes[j])
				// Of a partial last block, the common part is shared.
				want := min(ids*size, length(a), length(b))
				if shared < want || shared >= want+size {
					t.Fatalf("requests %d and %d share %d of blocks of %d, and %d ids", i, j, shared, size, ids)
				}
			}
		}
	})
}

// realTrace is the path of a public trace; the test is skipped where there is none.
func realTrace(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("TANDEM_TRACES")
	if dir == "" {
		dir = "../../../shared/data"
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s: set TANDEM_TRACES to the folder that has it", name)
	}
	return path
}

func TestReplayRealTraces(t *testing.T) {
	for _, c := range []struct {
		name                  string
		count, prompt, output int
	}{
		{"AzureLLMInferenceTrace_conv.csv", 19366, 1155, 211},
		{"conversation_trace.jsonl", 12031, 12035, 343},
	} {
		params := server
		params.ContextTokens = 1 << 18
		// Lengths are scaled to a sixteenth for speed; a block has 32 tokens.
		source := sourceOf(t, params, "--trace="+realTrace(t, c.name), "--trace-scale-lengths=0.0625")
		var prompt, output, blocks, shared float64
		count, last := 0, time.Duration(0)
		seen := map[[4]uint32]bool{}
		for {
			q, err := source.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if q.Due < last {
				t.Fatalf("request %d is due at %v after %v", count, q.Due, last)
			}
			last = q.Due
			count++
			prompt += float64(len(q.Prompt.TokenIDs))
			output += float64(q.MaxTokens)
			// Hits of an ideal prefix cache of whole blocks, by their first tokens.
			known := true
			for block := range slices.Chunk(q.Prompt.TokenIDs, trace.BlockTokens/16) {
				key := [4]uint32(append(slices.Clone(block[:min(len(block), 4)]), 0, 0, 0, 0))
				blocks++
				if known = known && seen[key]; known {
					shared++
				}
				seen[key] = true
			}
		}
		closeSource(t, source)
		prompt, output = 16*prompt/float64(count), 16*output/float64(count) // lengths as recorded
		if count != c.count || math.Abs(prompt/float64(c.prompt)-1) > 0.01 || math.Abs(output/float64(c.output)-1) > 0.01 {
			t.Errorf("%s: %d requests of %.1f and %.1f tokens, want %d of %d and %d", c.name, count, prompt, output, c.count, c.prompt, c.output)
		}
		want := map[string]string{"AzureLLMInferenceTrace_conv.csv": "0.0%", "conversation_trace.jsonl": "36.6%"}[c.name]
		if got := fmt.Sprintf("%.1f%%", 100*shared/blocks); got != want {
			t.Errorf("%s: prompts share %s of blocks, want %s", c.name, got, want)
		}
	}
}

func TestReplayShareGPT(t *testing.T) {
	path := write(t, "s.json", `[
		{"conversations": [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "One?"}, {"from": "gpt", "value": "12345678"}, {"from": "human", "value": "Two?"}, {"from": "gpt", "value": "123456789"}]},
		{"conversations": [{"from": "human", "value": "Three?"}, {"from": "gpt", "value": ""}]}]`)
	source := sourceOf(t, server, "--trace="+path, "--think=3s")
	defer closeSource(t, source)
	all := take(t, source, 10)
	if len(all) != 2 || all[0].Due <= 0 || all[1].Due <= all[0].Due {
		t.Fatalf("%d requests", len(all))
	}
	first := all[0]
	if first.Prompt.Text != "Be kind.\n\nOne?" || len(first.Prompt.Chat) != 2 || first.MaxTokens != 2 || first.Prompt.TokenIDs != nil {
		t.Errorf("first: %+v", first)
	}
	next, think := first.Then(workload.Answer{Text: " Yes."})
	if next == nil || think != 3*time.Second || next.Prompt.Text != "Be kind.\n\nOne? Yes.\n\nTwo?" || next.MaxTokens != 3 || next.Then != nil ||
		len(next.Prompt.Chat) != 4 || next.Prompt.Chat[2].Content != " Yes." {
		t.Errorf("next: %+v", next)
	}
	if second := all[1]; second.Then != nil || second.MaxTokens != 1 || second.Session != 1 || len(second.Prompt.Chat) != 1 {
		t.Errorf("second: %+v", second)
	}

	limited := sourceOf(t, server, "--trace="+path, "--turns=1")
	defer closeSource(t, limited)
	if q := take(t, limited, 1)[0]; q.Then != nil {
		t.Error("--turns 1 leaves a second turn")
	}
	small := server
	small.ContextTokens = 4
	cut := sourceOf(t, small, "--trace="+path)
	defer closeSource(t, cut)
	if q := take(t, cut, 1)[0]; q.Prompt.Text != "Be kind.\n\nOne?" || q.MaxTokens != 1 {
		t.Errorf("in a small context: %+v", q)
	}
}

// TestShareGPTSteps: the first step sends the recorded texts. Those of later steps begin with
// something else, and so are in no prefix cache, and conversations of one step alike.
func TestShareGPTSteps(t *testing.T) {
	path := write(t, "s.json", `[
		{"conversations": [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "One?"}, {"from": "gpt", "value": "12345678"}, {"from": "human", "value": "Two?"}, {"from": "gpt", "value": "1"}]},
		{"conversations": [{"from": "human", "value": "Three?"}, {"from": "gpt", "value": "1"}]}]`)
	run := func(seed string, step int) []*workload.Request {
		params := server
		params.Step = step
		source := sourceOf(t, params, "--trace="+path, "--seed="+seed)
		defer closeSource(t, source)
		return take(t, source, 10)
	}
	seen := map[string]bool{}
	for _, c := range []struct {
		seed string
		step int
	}{{"5", 0}, {"5", 1}, {"5", 2}, {"6", 1}} {
		all, again := run(c.seed, c.step), run(c.seed, c.step)
		nonce, recorded := strings.CutSuffix(all[0].Prompt.Text, "Be kind.\n\nOne?")
		if !recorded || seen[nonce] || (nonce == "") != (c.step == 0) || len(nonce) > 12 {
			t.Fatalf("%v: %q", c, all[0].Prompt.Text)
		}
		seen[nonce] = true
		if all[1].Prompt.Text != nonce+"Three?" || all[0].Prompt.Chat[0].Content != nonce+"Be kind." || all[0].Prompt.Chat[1].Content != "One?" {
			t.Errorf("%v: %q, %+v", c, all[1].Prompt.Text, all[0].Prompt.Chat)
		}
		if next, _ := all[0].Then(workload.Answer{Text: " Yes."}); next.Prompt.Text != nonce+"Be kind.\n\nOne? Yes.\n\nTwo?" {
			t.Errorf("%v: next %q", c, next.Prompt.Text)
		}
		if again[0].Prompt.Text != all[0].Prompt.Text {
			t.Errorf("%v: %q, then %q", c, all[0].Prompt.Text, again[0].Prompt.Text)
		}
	}
}

// A scale cuts recorded texts and answers at a character boundary.
func TestShareGPTScaled(t *testing.T) {
	path := write(t, "s.json", fmt.Sprintf(`{"conversations": [{"from": "human", "value": %q}, {"from": "gpt", "value": %q}]}`, strings.Repeat("ü", 80), strings.Repeat("word", 40)))
	source := sourceOf(t, server, "--trace="+path, "--trace-scale-lengths=0.1", "--chars-per-token=4.25")
	defer closeSource(t, source)
	if q := take(t, source, 1)[0]; q.Prompt.Text != strings.Repeat("ü", 8) || q.MaxTokens != 4 {
		t.Errorf("%+v", q)
	}
	empirical := sourceOf(t, server, "--trace="+path, "--prompt-tokens=empirical")
	if q := take(t, empirical, 1)[0]; len(q.Prompt.TokenIDs) != 40 || q.MaxTokens != 40 {
		t.Errorf("empirical: %d and %d tokens", len(q.Prompt.TokenIDs), q.MaxTokens)
	}
}

// A blocks prompt cut to the context keeps its shared prefix.
func TestMooncakeCut(t *testing.T) {
	path := write(t, "m.jsonl", `{"timestamp": 0, "input_length": 2000, "output_length": 10, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [1]}
{"timestamp": 0, "input_length": 300, "output_length": 10}`)
	params := server
	params.ContextTokens = 700
	source := sourceOf(t, params, "--trace="+path)
	defer closeSource(t, source)
	all := take(t, source, 3)
	if len(all) != 3 || len(all[0].Prompt.TokenIDs) != 690 || len(all[1].Prompt.TokenIDs) != 600 || len(all[2].Prompt.TokenIDs) != 300 {
		t.Fatalf("%d requests", len(all))
	}
	// The second lacks an id for its last, partial block, which is its own.
	if shared := common(all[0].Prompt.TokenIDs, all[1].Prompt.TokenIDs); shared < 512 || shared > 516 {
		t.Errorf("%d tokens are shared, want 512", shared)
	}
	if shared := common(all[0].Prompt.TokenIDs, all[2].Prompt.TokenIDs); shared > 4 {
		t.Errorf("%d tokens are shared, want none", shared)
	}
}

// Empirical lengths are pairs of the trace; the arrivals are the rate's.
func TestEmpirical(t *testing.T) {
	path := write(t, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n2023-11-16 18:15:48,200,20\n2023-11-16 18:15:56,300,30\n")
	source := sourceOf(t, server, "--trace="+path, "--prompt-tokens=empirical", "--trace-limit=2", "--seed=1")
	counts := map[[2]int]int{}
	var last time.Duration
	for _, q := range take(t, source, 1000) {
		counts[[2]int{len(q.Prompt.TokenIDs), q.MaxTokens}]++
		last = q.Due
	}
	if len(counts) != 2 || counts[[2]int{100, 10}] < 400 || counts[[2]int{200, 20}] < 400 || last < 5*time.Second {
		t.Errorf("lengths %v until %v", counts, last)
	}
	source = sourceOf(t, server, "--trace="+path, "--output-tokens=empirical", "--prompt-tokens=7", "--trace-scale-lengths=0.5")
	if q := take(t, source, 1)[0]; len(q.Prompt.TokenIDs) != 7 || q.MaxTokens%5 != 0 {
		t.Errorf("only outputs are empirical: %d and %d tokens", len(q.Prompt.TokenIDs), q.MaxTokens)
	}
}
