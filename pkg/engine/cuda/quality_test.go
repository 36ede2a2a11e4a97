package cuda_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// heldOutWindow is how many tokens are computed at once.
const heldOutWindow = 256

// heldOut are tokens of the text that the bundled model was not trained on: all on a GPU,
// and a window where it is emulated.
func heldOut(t *testing.T) []int32 {
	t.Helper()
	tok, err := tokenizer.Open(fableDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(fableDir, "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), true)
	if gpu == "" {
		ids = ids[:heldOutWindow+1]
	}
	return ids
}

// heldOutLogits are a row for each token but the last.
func heldOutLogits(t *testing.T, w *cuda.Weights, kv cuda.KVType, ids []int32) [][]float32 {
	t.Helper()
	e := newEngine(t, w, cuda.Config{KV: kv, Blocks: 8, MaxBatchTokens: heldOutWindow, MaxSequences: 1, NoGraphs: true})
	var rows [][]float32
	for first := 0; first+1 < len(ids); first += heldOutWindow {
		last := min(first+heldOutWindow, len(ids)-1)
		out := step(t, e, engine.Sequence{Tokens: ids[first:last], Blocks: table(0, 8), Logits: engine.LogitsAll})
		rows = append(rows, out.Logits[0]...)
	}
	return rows
}

// divergence is the Kullback-Leibler divergence of the second logits' distribution from
// the first's, in nats.
func divergence(exact, other []float32) float64 {
	var sum float64
	exactFirst, otherFirst := enginetest.NLL(exact, 0), enginetest.NLL(other, 0)
	for i := range exact {
		p := float64(exact[i]-exact[0]) - exactFirst
		q := float64(other[i]-other[0]) - otherFirst
		sum += math.Exp(p) * (p - q)
	}
	return sum
}

// compare measures what logits cost that differ from those in bf16, on the held-out text.
// It is an error if the Kullback-Leibler divergence is not above 0 and below most, in nats a
// token.
func compare(t *testing.T, what string, exact, got [][]float32, ids []int32, most float64) {
	t.Helper()
	var each []float64
	var mean, bits, bitsExact float64
	same, n := 0, float64(len(exact))
	for i, row := range got {
		d := divergence(exact[i], row)
		each, mean = append(each, d), mean+d/n
		bits += enginetest.NLL(row, ids[i+1]) / math.Ln2 / n
		bitsExact += enginetest.NLL(exact[i], ids[i+1]) / math.Ln2 / n
		if slices.Index(row, slices.Max(row)) == slices.Index(exact[i], slices.Max(exact[i])) {
			same++
		}
	}
	slices.Sort(each)
	t.Logf("%s: bits a token %.4f, in bf16 %.4f; KL divergence a token: %.5f, 99th percentile %.5f, worst %.5f; same likeliest token: %.1f%%",
		what, bits, bitsExact, mean, each[len(each)*99/100], each[len(each)-1], 100*float64(same)/n)
	if !(mean > 0 && mean < most) {
		t.Errorf("%s: a KL divergence of %.5f nats a token, want less than %.5f", what, mean, most)
	}
	if math.Abs(bits-bitsExact) > 0.05 {
		t.Errorf("%s: %.4f bits a token, in bf16 %.4f", what, bits, bitsExact)
	}
}

// TestQualityOfWeights says what 8 bits cost: the figures of
// docs/decisions/0017-cuda-eight-bits.md are the whole text's. Rounding a weight to e4m3
// changes it by 2.6% on average, to a 127th of its row's largest by 0.7% of the row's size
// if that is normal: divergences, which are as the squares, may differ by 16.
func TestQualityOfWeights(t *testing.T) {
	long(t)
	ids := heldOut(t)
	exact := heldOutLogits(t, loadAs(t, fableDir, cuda.BF16), cuda.KVBF16, ids)
	for kind, most := range map[cuda.WeightType]float64{cuda.Int8: 0.0004, cuda.FP8: 0.003} {
		compare(t, string(kind), exact, heldOutLogits(t, loadAs(t, fableDir, kind), cuda.KVBF16, ids), ids, most)
	}
}

// TestQualityOfKV says what keys and values in fp8 cost: the figures of
// docs/decisions/0018-cuda-kv-fp8.md are the whole text's. Divergence goes as the square of
// what numbers are off, and rounding activations and KV to bf16 makes 1.9e-5 (README.md of
// the model).
func TestQualityOfKV(t *testing.T) {
	long(t)
	ids := heldOut(t)
	w := load(t, fableDir)
	compare(t, "KV in fp8", heldOutLogits(t, w, cuda.KVBF16, ids), heldOutLogits(t, w, cuda.KVFP8, ids), ids, fp8Slack*fp8Slack*1.9e-5)
}
