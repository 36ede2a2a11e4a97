package cpu_test

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

const fableDir = "../../../models/fable"

// Tolerances of models/fable/README.md.
const (
	logitTolerance  = 0.15
	nllTolerance    = 0.02
	marginTolerance = 0.3
)

type referenceCase struct {
	Prompt   string       `json:"prompt"`
	TokenIDs []int32      `json:"token_ids"`
	Top      [][2]float64 `json:"last_logits_top16"`
	Mean     float64      `json:"last_logits_mean"`
	Std      float64      `json:"last_logits_std"`
	NLL      []float64    `json:"prompt_nll"`
	Greedy   []int32      `json:"greedy"`
	Margin   []float64    `json:"greedy_margin"`
}

func references(t testing.TB) []referenceCase {
	t.Helper()
	f, err := os.Open(fableDir + "/reference.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []referenceCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c referenceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil || len(cases) == 0 {
		t.Fatalf("%d references: %v", len(cases), err)
	}
	return cases
}

// loadFable loads the bundled model with the given number of threads.
func loadFable(t testing.TB, threads int) *cpu.Weights {
	t.Helper()
	return loadFableAs(t, cpu.BF16, threads)
}

func loadFableAs(t testing.TB, kind cpu.WeightType, threads int) *cpu.Weights {
	t.Helper()
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cpu.Load(t.Context(), m, cpu.LoadConfig{Type: kind, Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Close(); err != nil { // packed weights do not need it
		t.Fatal(err)
	}
	return w
}

func newEngine(t testing.TB, w *cpu.Weights, config cpu.Config) engine.Engine {
	t.Helper()
	e, err := w.NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// table is blocks first, first+1, ...
func table(first, n int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, n)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(first + i)
	}
	return blocks
}

func step(t testing.TB, e engine.Engine, sequences ...engine.Sequence) engine.Output {
	t.Helper()
	out, err := e.Step(t.Context(), engine.Batch{Sequences: sequences})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func nll(logits []float32, token int32) float64 {
	largest := math.Inf(-1)
	for _, x := range logits {
		largest = max(largest, float64(x))
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - largest)
	}
	return largest + math.Log(sum) - float64(logits[token])
}

func TestReferenceLogits(t *testing.T) {
	e := newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 16})
	for _, c := range references(t) {
		out := step(t, e, engine.Sequence{Tokens: c.TokenIDs, Blocks: table(0, 16), Logits: engine.LogitsAll})
		rows := out.Logits[0]
		if len(rows) != len(c.TokenIDs) {
			t.Fatalf("%q: %d rows of logits for %d tokens", c.Prompt, len(rows), len(c.TokenIDs))
		}
		last := rows[len(rows)-1]
		for _, top := range c.Top {
			if got := float64(last[int(top[0])]); math.Abs(got-top[1]) > logitTolerance {
				t.Errorf("%q: logit of %d is %.4f, reference %.4f", c.Prompt, int(top[0]), got, top[1])
			}
		}
		var sum, squares float64
		for _, x := range last {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		mean := sum / float64(len(last))
		std := math.Sqrt(squares/float64(len(last)) - mean*mean)
		if math.Abs(mean-c.Mean) > logitTolerance/2 || math.Abs(std-c.Std) > logitTolerance/2 {
			t.Errorf("%q: logits have mean %.4f and deviation %.4f, reference %.4f and %.4f", c.Prompt, mean, std, c.Mean, c.Std)
		}
		var got, want float64
		for i, n := range c.NLL {
			got += nll(rows[i], c.TokenIDs[i+1])
			want += n
		}
		if n := float64(len(c.NLL)); math.Abs(got-want)/n > nllTolerance {
			t.Errorf("%q: %.4f nats a token, reference %.4f", c.Prompt, got/n, want/n)
		}
	}
}

func TestReferenceContinuations(t *testing.T) {
	e := newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 16})
	for _, c := range references(t) {
		tokens, start := c.TokenIDs, 0
		for i, want := range c.Greedy {
			out := step(t, e, engine.Sequence{Tokens: tokens, Start: start, Blocks: table(0, 16), Sample: &engine.Sample{Offset: uint64(i)}})
			if out.Tokens[0] != want {
				if c.Margin[i] >= marginTolerance {
					t.Errorf("%q: token %d is %d, reference %d by a margin of %.3f", c.Prompt, i, out.Tokens[0], want, c.Margin[i])
				}
				break
			}
			start += len(tokens)
			tokens = []int32{want}
		}
	}
}

// heldOut are the tokens of the text that the bundled model was not trained on.
func heldOut(t *testing.T) []int32 {
	t.Helper()
	tok, err := tokenizer.Open(fableDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fableDir + "/heldout.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), true)
	if len(ids) != 1053 {
		t.Fatalf("%d tokens, want 1053", len(ids))
	}
	return ids
}

// heldOutLogits computes them in windows of 256: a row for each token but the last.
func heldOutLogits(t *testing.T, w *cpu.Weights, kv cpu.KVType, ids []int32) [][]float32 {
	t.Helper()
	e := newEngine(t, w, cpu.Config{KV: kv, Blocks: 8})
	var rows [][]float32
	const window = 256
	for first := 0; first+1 < len(ids); first += window {
		last := min(first+window, len(ids)-1)
		out := step(t, e, engine.Sequence{Tokens: ids[first:last], Blocks: table(0, 8), Logits: engine.LogitsAll})
		rows = append(rows, out.Logits[0]...)
	}
	return rows
}

// meanNLL is in nats a token.
func meanNLL(rows [][]float32, ids []int32) float64 {
	var sum float64
	for i, logits := range rows {
		sum += nll(logits, ids[i+1])
	}
	return sum / float64(len(rows))
}

func TestHeldOutText(t *testing.T) {
	ids := heldOut(t)
	if got := meanNLL(heldOutLogits(t, loadFable(t, 2), cpu.KVBF16, ids), ids); math.Abs(got-4.329) > nllTolerance {
		t.Errorf("%.4f nats a token, reference 4.329", got)
	}
}
