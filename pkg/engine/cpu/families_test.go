package cpu_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/model"
)

const familiesDir = "testdata/families"

// familySlack is how many times the error of rounding to bf16 the engine's may be: the
// rest of its arithmetic is float32.
const familySlack = 1.1

func readJSON(t testing.TB, path string, to any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// families are the names of the tiny models.
func families(t testing.TB) []string {
	t.Helper()
	names := enginetest.Families(t, familiesDir)
	for i, dir := range names {
		names[i] = filepath.Base(dir)
	}
	return names
}

func openModel(t testing.TB, dir string) *model.Model {
	t.Helper()
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func loadFamily(t testing.TB, family string, threads int) *cpu.Weights {
	t.Helper()
	return load(t, openModel(t, filepath.Join(familiesDir, family)), threads)
}

// TestFamilies compares the logits after every token of a prompt, and the greedy
// continuation, with those of generate.py.
func TestFamilies(t *testing.T) {
	for _, family := range families(t) {
		t.Run(family, func(t *testing.T) {
			e := newEngine(t, loadFamily(t, family, 2), cpu.Config{Blocks: 8})
			enginetest.RunFamily(t, filepath.Join(familiesDir, family), e, familySlack)
		})
	}
}

// TestFamilyBits: one chunk or many, alone or in a batch, on blocks of any size,
// with any number of threads and any instruction set, past the end of an attention
// split where the context allows.
func TestFamilyBits(t *testing.T) {
	for i, family := range families(t) {
		t.Run(family, func(t *testing.T) {
			w := loadFamily(t, family, 3)
			r := rand.New(rand.NewPCG(9, uint64(i)))
			n := min(w.Spec().ContextTokens, 290)
			tokens, other := randomTokens(r, n, w.Spec().VocabSize), randomTokens(r, 200, w.Spec().VocabSize)
			want := logitsOf(t, newEngine(t, w, cpu.Config{Blocks: 17, MaxBatchTokens: n, Threads: 1, ISA: "portable"}), tokens, table(0, 17))
			sets := kernels.Usable()
			for _, set := range sets[:max(1, len(sets)-1)] {
				blockTokens := []int{16, 32, 64, 256}[r.IntN(4)]
				e := newEngine(t, w, cpu.Config{Blocks: 80, MaxBatchTokens: n, Threads: 1 + r.IntN(3), BlockTokens: blockTokens, ISA: set.Name()})
				dirty(t, e)
				what := fmt.Sprintf("%s, %d threads, blocks of %d", set.Name(), e.Capacity().Threads, blockTokens)
				sameBits(t, what, feed(t, r, e, tokens, 0, table(3, (n+blockTokens-1)/blockTokens)), want)
				cut := 1 + r.IntN(n-1)
				blocks := table(40, (n+blockTokens-1)/blockTokens)
				out := step(t, e, engine.Sequence{Tokens: tokens[:cut], Blocks: blocks, Logits: engine.LogitsAll})
				sameBits(t, what+", a prefix", out.Logits[0], want[:cut])
				out = step(t, e,
					engine.Sequence{Tokens: other[:min(200, cut)], Blocks: table(0, 13)},
					engine.Sequence{Tokens: tokens[cut:], Start: cut, Blocks: blocks, Logits: engine.LogitsAll})
				sameBits(t, what+", beside another", out.Logits[1], want[cut:])
			}
		})
	}
}

// TestFamilyConformance runs the engine's contract on what differs most from Llama.
func TestFamilyConformance(t *testing.T) {
	for _, family := range []string{"mistral", "qwen2-window", "qwen3-yarn-window"} {
		t.Run(family, func(t *testing.T) {
			w := loadFamily(t, family, 2)
			fresh := func(t *testing.T) engine.Engine {
				return newEngine(t, w, cpu.Config{Blocks: 40, MaxBatchTokens: 64, MaxSequences: 6})
			}
			enginetest.Run(t, fresh)
			t.Run("logits", func(t *testing.T) { enginetest.RunLogits(t, fresh) })
		})
	}
}
