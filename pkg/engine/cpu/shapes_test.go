package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

func synthesize(t testing.TB, shape model.Shape) *model.Model {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{Seed: 3}); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func load(t testing.TB, m *model.Model, threads int) *cpu.Weights {
	t.Helper()
	return loadAs(t, m, cpu.BF16, threads)
}

func loadAs(t testing.TB, m *model.Model, kind cpu.WeightType, threads int) *cpu.Weights {
	t.Helper()
	w, err := cpu.Load(t.Context(), m, cpu.Config{Weights: kind, Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestShapes runs models of odd shapes against a plain float64 transformer, and
// every instruction set against the portable one.
func TestShapes(t *testing.T) {
	shapes := []model.Shape{
		{HiddenSize: 1, Layers: 1, Heads: 1, KVHeads: 1, HeadSize: 2, FFNSize: 1, VocabSize: 258},
		{HiddenSize: 17, Layers: 2, Heads: 3, KVHeads: 1, HeadSize: 6, FFNSize: 33, VocabSize: 301},
		{HiddenSize: 64, Layers: 1, Heads: 8, KVHeads: 8, HeadSize: 10, FFNSize: 65, VocabSize: 259, TiedEmbeddings: true},
		{HiddenSize: 65, Layers: 1, Heads: 40, KVHeads: 1, HeadSize: 8, FFNSize: 16, VocabSize: 267, TiedEmbeddings: true},
		{HiddenSize: 96, Layers: 2, Heads: 14, KVHeads: 2, HeadSize: 80, FFNSize: 100, VocabSize: 400},
	}
	r, cuts := rand.New(rand.NewPCG(5, 5)), rand.New(rand.NewPCG(5, 6))
	for i := range 3 {
		kv := 1 + r.IntN(4)
		shapes = append(shapes, model.Shape{
			HiddenSize: 1 + r.IntN(150), Layers: 1 + r.IntN(2), Heads: kv * (1 + r.IntN(7)), KVHeads: kv,
			HeadSize: 2 * (1 + r.IntN(70)), FFNSize: 1 + r.IntN(200), VocabSize: 258 + r.IntN(100), TiedEmbeddings: i%2 == 0,
		})
	}
	for _, shape := range shapes {
		shape.ContextTokens, shape.RopeTheta = 512, 10000
		t.Run(fmt.Sprintf("%d-%d-%d-%d-%d", shape.HiddenSize, shape.Heads, shape.KVHeads, shape.HeadSize, shape.FFNSize), func(t *testing.T) {
			m := synthesize(t, shape)
			tokens := randomTokens(r, 40, shape.VocabSize)
			plain := forward(t, m, tokens)
			for _, class := range []struct {
				kind cpu.WeightType
				kv   cpu.KVType
				most float64
			}{{cpu.BF16, cpu.KVBF16, 0.03}, {cpu.Int8, cpu.KVBF16, 0.06}, {cpu.Int4, cpu.KVBF16, 0.25}, {cpu.BF16, cpu.KVInt8, 0.03}} {
				w := loadAs(t, m, class.kind, 2)
				want := logitsOf(t, newEngine(t, w, cpu.Config{KV: class.kv, Blocks: 4, ISA: "portable"}), tokens, table(0, 2))
				for _, set := range kernels.Usable() {
					e := newEngine(t, w, cpu.Config{KV: class.kv, Blocks: 5, ISA: set.Name(), BlockTokens: 16})
					dirty(t, e)
					sameBits(t, string(class.kind)+" "+string(class.kv)+" "+set.Name(), feed(t, cuts, e, tokens, 0, table(1, 3)), want)
				}
				var size, difference float64
				for p := range want {
					for i := range want[p] {
						d := float64(want[p][i]) - plain[p][i]
						size += plain[p][i] * plain[p][i]
						difference += d * d
					}
				}
				relative := math.Sqrt(difference / size)
				t.Logf("%s, KV in %s: logits are off by %.4f of their size", class.kind, class.kv, relative)
				if !(relative < class.most) {
					t.Errorf("%s, KV in %s: logits are off by %.4f of their size", class.kind, class.kv, relative)
				}
			}
		})
	}
}
