package cpu_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/model"
)

const familiesDir = "testdata/families"

// The error of logits is the root mean square of what they are off over all
// positions, by the logits' size. What rounding activations to bf16 does to them is
// computed with them (expected.Rounding, 0.004 to 0.015); the engine's error is of
// that size, because the rest of its arithmetic is float32: familySlack times it at
// most. One feature left out makes an error of familyDifference at least.
const (
	familySlack      = 1.1
	familyDifference = 0.1
	// familyMargin is a lead that such errors do not turn: some 2% of logits whose
	// deviation is 3.
	familyMargin = 0.3
)

// expected is what testdata/families/generate.py computed of a family.
type expected struct {
	Prompt   []int32   `json:"prompt"`
	Greedy   []int32   `json:"greedy"`
	Margins  []float64 `json:"margins"`
	Rounding float64   `json:"rounding"`
	logits   [][]float64
}

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

func expectedOf(t testing.TB, family string, vocabulary int) expected {
	t.Helper()
	var e expected
	readJSON(t, filepath.Join(familiesDir, family, "expected.json"), &e)
	data, err := os.ReadFile(filepath.Join(familiesDir, family, "logits.f32"))
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Prompt) == 0 || len(data) != 4*len(e.Prompt)*vocabulary {
		t.Fatalf("%s: %d bytes of logits for %d tokens of a vocabulary of %d", family, len(data), len(e.Prompt), vocabulary)
	}
	for row := range slices.Chunk(data, 4*vocabulary) {
		logits := make([]float64, vocabulary)
		for i := range logits {
			logits[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:])))
		}
		e.logits = append(e.logits, logits)
	}
	return e
}

func families(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(familiesDir, "*", "config.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no families in %s (error %v)", familiesDir, err)
	}
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = filepath.Base(filepath.Dir(path))
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

// difference is the root mean square of what got is off, by the size of want.
func difference(got [][]float32, want [][]float64) float64 {
	var size, off float64
	for p := range want {
		for i := range want[p] {
			d := float64(got[p][i]) - want[p][i]
			size += want[p][i] * want[p][i]
			off += d * d
		}
	}
	return math.Sqrt(off / size)
}

// TestFamilies compares the logits after every token of a prompt, and the greedy
// continuation, with those of generate.py.
func TestFamilies(t *testing.T) {
	for _, family := range families(t) {
		t.Run(family, func(t *testing.T) {
			w := loadFamily(t, family, 2)
			e, want := newEngine(t, w, cpu.Config{Blocks: 8}), expectedOf(t, family, w.Spec().VocabSize)
			got := logitsOf(t, e, want.Prompt, table(0, 4))
			off := difference(got, want.logits)
			t.Logf("logits are off by %.5f of their size, by bf16's rounding by %.5f", off, want.Rounding)
			if !(off < familySlack*want.Rounding) || want.Rounding > familyDifference/5 {
				t.Error("that is more than rounding explains")
			}
			tokens, start := want.Prompt, 0
			for i, token := range want.Greedy {
				out := step(t, e, engine.Sequence{Tokens: tokens, Start: start, Blocks: table(4, 4), Sample: &engine.Sample{Offset: uint64(i)}})
				if out.Tokens[0] != token {
					if want.Margins[i] >= familyMargin {
						t.Errorf("token %d is %d, want %d by a margin of %.3f", i, out.Tokens[0], token, want.Margins[i])
					}
					break
				}
				start += len(tokens)
				tokens = []int32{token}
			}
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
