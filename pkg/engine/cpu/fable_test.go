package cpu_test

import (
	"math"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

const fableDir = "../../../models/fable"

// nllTolerance is that of models/fable/README.md.
const nllTolerance = 0.02

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
	w, err := cpu.Load(t.Context(), m, cpu.Config{Weights: kind, Threads: threads})
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
func table(first, n int) []kvcache.BlockID { return kvcache.BlockRange(first, n) }

func step(t testing.TB, e engine.Engine, sequences ...engine.Sequence) engine.Output {
	t.Helper()
	out, err := e.Step(t.Context(), engine.Batch{Sequences: sequences})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReferenceLogits(t *testing.T) {
	enginetest.RunReferenceLogits(t, fableDir, newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 16}))
}

func TestReferenceContinuations(t *testing.T) {
	enginetest.RunReferenceContinuations(t, fableDir, newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 16}), 0)
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
		sum += enginetest.NLL(logits, ids[i+1])
	}
	return sum / float64(len(rows))
}

func TestHeldOutText(t *testing.T) {
	ids := heldOut(t)
	if got := meanNLL(heldOutLogits(t, loadFable(t, 2), cpu.KVBF16, ids), ids); math.Abs(got-4.329) > nllTolerance {
		t.Errorf("%.4f nats a token, reference 4.329", got)
	}
}
