package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

func TestFP8KVConformance(t *testing.T) {
	long(t)
	w := load(t, filepath.Join(familiesDir, "qwen3"))
	fresh := func(t *testing.T) engine.Engine {
		return newEngine(t, w, cuda.Config{KV: cuda.KVFP8, Blocks: 40, MaxBatchTokens: 64, MaxSequences: 6})
	}
	enginetest.Run(t, fresh)
	t.Run("logits", func(t *testing.T) { enginetest.RunLogits(t, fresh) })
}

// fp8Slack is how many times the error of rounding all activations to bf16 may be what keys
// and values in fp8 change. Of eight bits they keep four, so that rounding them is 16 times
// as coarse; and they are some of the activations.
const fp8Slack = 16

func TestFP8KVFamilies(t *testing.T) {
	long(t)
	for _, dir := range enginetest.Families(t, familiesDir) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			w := load(t, dir)
			expected := enginetest.ExpectedOf(t, dir, w.Spec().VocabSize)
			logits := func(kv cuda.KVType) [][]float32 {
				e := newEngine(t, w, cuda.Config{KV: kv, Blocks: 8, MaxBatchTokens: 256})
				return step(t, e, engine.Sequence{Tokens: expected.Prompt, Blocks: table(0, 8), Logits: engine.LogitsAll}).Logits[0]
			}
			exact := logits(cuda.KVBF16)
			wide := make([][]float64, len(exact))
			for i, row := range exact {
				for _, x := range row {
					wide[i] = append(wide[i], float64(x))
				}
			}
			off := enginetest.Difference(logits(cuda.KVFP8), wide)
			t.Logf("logits are off by %.5f of their size, %.1f times what rounding to bf16 makes", off, off/expected.Rounding)
			if !(off < fp8Slack*expected.Rounding) || off < expected.Rounding {
				t.Errorf("rounding keys and values explains %.5f to %.5f", expected.Rounding, fp8Slack*expected.Rounding)
			}
		})
	}
}

// TestFP8KVBits is TestBits for keys and values in fp8; and a decode step that is a graph
// has the bits of the prompt's, also in an engine that got the pages of another.
func TestFP8KVBits(t *testing.T) {
	longtest.Only(t)
	for i, family := range []string{"llama", "mistral-nemo", "qwen2-window", "qwen3-yarn-window"} {
		t.Run(family, func(t *testing.T) {
			if family != "llama" {
				long(t)
			}
			w := load(t, filepath.Join(familiesDir, family))
			r := rand.New(rand.NewPCG(9, uint64(i)))
			n := min(w.Spec().ContextTokens, 400)
			tokens, other := randomTokens(r, n, w.Spec().VocabSize), randomTokens(r, 100, w.Spec().VocabSize)
			whole := newEngine(t, w, cuda.Config{KV: cuda.KVFP8, Blocks: 40, BlockTokens: 16, MaxBatchTokens: n})
			want := step(t, whole, engine.Sequence{Tokens: tokens, Blocks: table(0, (n+15)/16), Logits: engine.LogitsAll}).Logits[0]
			blockTokens := []int{256, 16, 32, 64}[i]
			blocks := (n + blockTokens - 1) / blockTokens
			config := cuda.Config{KV: cuda.KVFP8, Blocks: 2*blocks + 7, MaxBatchTokens: n + 100, BlockTokens: blockTokens}
			e := newEngine(t, w, config)
			dirty(t, e)
			what := fmt.Sprintf("blocks of %d", blockTokens)
			sameBits(t, what+", in chunks", feed(t, r, e, tokens, 0, table(3, blocks)), want)
			cut := 1 + r.IntN(n-1)
			mine := table(3+blocks, blocks)
			out := step(t, e,
				engine.Sequence{Tokens: other[:min(40, n)], Blocks: table(0, 3)},
				engine.Sequence{Tokens: tokens[:cut], Blocks: mine, Logits: engine.LogitsAll})
			sameBits(t, what+", a prefix beside another", out.Logits[1], want[:cut])
			out = step(t, e, engine.Sequence{Tokens: tokens[cut:], Start: cut, Blocks: mine, Logits: engine.LogitsAll})
			sameBits(t, what+", the rest", out.Logits[0], want[cut:])

			last := engine.Sequence{Tokens: tokens[n-1:], Start: n - 1, Blocks: mine, Logits: engine.LogitsLast}
			sameBits(t, what+", the last token", step(t, e, last).Logits[0], want[n-1:])
			to := newEngine(t, w, config)
			dirty(t, to)
			pages := make([]byte, blocks*e.Capacity().Layout.SliceBytes)
			last.Blocks = table(1, blocks)
			for layer := range w.Spec().Layers {
				if err := e.Pages().Read(layer, mine, pages); err != nil {
					t.Fatal(err)
				}
				if err := to.Pages().Write(layer, last.Blocks, pages); err != nil {
					t.Fatal(err)
				}
			}
			sameBits(t, what+", in another engine", step(t, to, last).Logits[0], want[n-1:])
		})
	}
}

// TestFP8KVLongContext is TestLongContext for keys and values in fp8.
func TestFP8KVLongContext(t *testing.T) {
	long(t)
	w := load(t, fableDir)
	r := rand.New(rand.NewPCG(3, 1))
	const n = 700
	tokens := randomTokens(r, n, w.Spec().VocabSize)
	e := newEngine(t, w, cuda.Config{KV: cuda.KVFP8, Blocks: 23, MaxBatchTokens: n, MaxSequences: 2})
	want := step(t, e, engine.Sequence{Tokens: tokens, Blocks: table(0, 22), Logits: engine.LogitsLast}).Logits[0]
	for _, chunk := range []int{1, 20} {
		s := engine.Sequence{Tokens: tokens[n-chunk:], Start: n - chunk, Blocks: table(0, 22), Logits: engine.LogitsLast}
		sameBits(t, fmt.Sprintf("a chunk of %d", chunk), step(t, e, s).Logits[0], want)
	}
}

// TestFP8KVPages: a token of a head takes a byte an element and one more, so that nearly
// twice as many blocks fit; and pages of one type are no pages of the other.
func TestFP8KVPages(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "mistral-nemo"))
	spec := w.Spec()
	stride := (spec.HeadSize + 15) / 16 * 16
	var classes, orders []string
	for _, kv := range cuda.KVTypes() {
		for _, blockTokens := range []int{16, 32, 64, 128, 256} {
			config := cuda.Config{KV: kv, KVBytes: 1 << 20, BlockTokens: blockTokens, MaxBatchTokens: 16, NoGraphs: true}
			slice := 2 * spec.KVHeads * blockTokens * 2 * stride
			if kv == cuda.KVFP8 {
				slice = 2 * spec.KVHeads * blockTokens * (stride + 1)
			}
			e := newEngine(t, w, config)
			c := e.Capacity()
			if c.Layout.SliceBytes != slice || cuda.SliceBytes(spec, config) != slice || c.Blocks != 1<<20/(spec.Layers*slice) {
				t.Errorf("%s, blocks of %d: slices of %d bytes and %d blocks, want %d bytes", kv, blockTokens, c.Layout.SliceBytes, c.Blocks, slice)
			}
			if c.Layout.ElementType != string(kv) {
				t.Errorf("elements are %s, want %s", c.Layout.ElementType, kv)
			}
			if blockTokens == 16 {
				classes, orders = append(classes, c.Layout.ArithmeticClass), append(orders, c.Layout.Order)
			}
		}
	}
	slices.Sort(classes)
	slices.Sort(orders)
	if len(slices.Compact(classes)) != len(cuda.KVTypes()) || len(slices.Compact(orders)) != len(cuda.KVTypes()) {
		t.Errorf("classes %v, orders %v: two are the same", classes, orders)
	}
	if _, err := w.NewEngine(cuda.Config{KV: "fp4", Blocks: 1}); err == nil || !strings.Contains(err.Error(), "use one of [bf16 fp8]") {
		t.Errorf("fp4: %v", err)
	}
}
