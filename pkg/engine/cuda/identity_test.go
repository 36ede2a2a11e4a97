package cuda_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

func randomTokens(r *rand.Rand, n, vocabulary int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(r.IntN(vocabulary))
	}
	return tokens
}

// dirty fills all pages with NaN: what other sequences left must not matter.
func dirty(t *testing.T, e engine.Engine) {
	t.Helper()
	l := e.Capacity().Layout
	slice := bytes.Repeat([]byte{0xff}, l.SliceBytes)
	for layer := range l.Layers {
		for b := range e.Capacity().Blocks {
			if err := e.Pages().Write(layer, []kvcache.BlockID{kvcache.BlockID(b)}, slice); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sameBits(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows of logits, want %d", what, len(got), len(want))
	}
	for r := range want {
		for i := range want[r] {
			if math.Float32bits(got[r][i]) != math.Float32bits(want[r][i]) {
				t.Fatalf("%s: logit %d of row %d is %v, want %v", what, i, r, got[r][i], want[r][i])
			}
		}
	}
}

// feed computes tokens from start on in random chunks.
func feed(t *testing.T, r *rand.Rand, e engine.Engine, tokens []int32, start int, blocks []kvcache.BlockID) [][]float32 {
	t.Helper()
	var rows [][]float32
	for start < len(tokens) {
		n := min(1+r.IntN(1+r.IntN(120)), len(tokens)-start)
		out := step(t, e, engine.Sequence{Tokens: tokens[start : start+n], Start: start, Blocks: blocks, Logits: engine.LogitsAll})
		rows = append(rows, out.Logits[0]...)
		start += n
	}
	return rows
}

// TestBits: logits have the same bits in one chunk or in many, alone or beside others, on
// blocks of any size, with windows and without, over more than one split of attention,
// whatever pages held before.
func TestBits(t *testing.T) {
	for i, of := range []struct {
		family string
		kind   cuda.WeightType
	}{
		{"llama", cuda.BF16}, {"mistral", cuda.BF16}, {"qwen2-window", cuda.BF16}, {"qwen3-yarn-window", cuda.BF16},
		{"qwen2-window", cuda.Int8}, {"llama", cuda.FP8},
	} {
		t.Run(of.family+"/"+string(of.kind), func(t *testing.T) {
			if of.kind != cuda.BF16 || of.family == "mistral" || of.family == "qwen3-yarn-window" {
				long(t)
			}
			w := loadAs(t, filepath.Join(familiesDir, of.family), of.kind)
			r := rand.New(rand.NewPCG(9, uint64(i)))
			n := min(w.Spec().ContextTokens, 400)
			tokens, other := randomTokens(r, n, w.Spec().VocabSize), randomTokens(r, 100, w.Spec().VocabSize)
			whole := newEngine(t, w, cuda.Config{Blocks: 40, BlockTokens: 16, MaxBatchTokens: n})
			want := step(t, whole, engine.Sequence{Tokens: tokens, Blocks: table(0, (n+15)/16), Logits: engine.LogitsAll}).Logits[0]
			blockTokens := []int{16, 32, 64, 256}[r.IntN(4)]
			blocks := (n + blockTokens - 1) / blockTokens
			e := newEngine(t, w, cuda.Config{Blocks: 2*blocks + 7, MaxBatchTokens: n + 100, BlockTokens: blockTokens})
			dirty(t, e)
			what := fmt.Sprintf("blocks of %d", blockTokens)
			sameBits(t, what+", in chunks", feed(t, r, e, tokens, 0, table(3, blocks)), want)
			cut := 1 + r.IntN(n-1)
			mine := table(3+blocks, blocks)
			out := step(t, e, engine.Sequence{Tokens: tokens[:cut], Blocks: mine, Logits: engine.LogitsAll})
			sameBits(t, what+", a prefix", out.Logits[0], want[:cut])
			out = step(t, e,
				engine.Sequence{Tokens: other[:min(40, n)], Blocks: table(0, 3)},
				engine.Sequence{Tokens: tokens[cut:], Start: cut, Blocks: mine, Logits: engine.LogitsAll})
			sameBits(t, what+", beside another", out.Logits[1], want[cut:])
		})
	}
}

// TestLongContext: one token behind more than two splits of attention, which several
// thread blocks share, has the bits of the prompt computed whole.
func TestLongContext(t *testing.T) {
	long(t)
	w := load(t, fableDir)
	r := rand.New(rand.NewPCG(3, 1))
	const n = 700
	tokens := randomTokens(r, n, w.Spec().VocabSize)
	e := newEngine(t, w, cuda.Config{Blocks: 23, MaxBatchTokens: n, MaxSequences: 2})
	want := step(t, e, engine.Sequence{Tokens: tokens, Blocks: table(0, 22), Logits: engine.LogitsLast}).Logits[0]
	again := step(t, e, engine.Sequence{Tokens: tokens[n-1:], Start: n - 1, Blocks: table(0, 22), Logits: engine.LogitsLast}).Logits[0]
	sameBits(t, "one token", again, want)
	again = step(t, e, engine.Sequence{Tokens: tokens[n-20:], Start: n - 20, Blocks: table(0, 22), Logits: engine.LogitsLast}).Logits[0]
	sameBits(t, "a chunk of 20", again, want)
}

// TestFewRows: chunks of as many rows as each product and the heads in it are for have the
// bits of the prompt computed whole.
func TestFewRows(t *testing.T) {
	longtest.Only(t)
	w := load(t, fableDir)
	r := rand.New(rand.NewPCG(3, 2))
	const n = 130
	tokens := randomTokens(r, n, w.Spec().VocabSize)
	e := newEngine(t, w, cuda.Config{Blocks: 10, MaxBatchTokens: n, MaxSequences: 2})
	want := step(t, e, engine.Sequence{Tokens: tokens, Blocks: table(0, 5), Logits: engine.LogitsAll}).Logits[0]
	dirty(t, e)
	start := 0
	for _, rows := range []int{33, 8, 1, 17, 9, 16, 32, 14} {
		s := engine.Sequence{Tokens: tokens[start : start+rows], Start: start, Blocks: table(5, 5), Logits: engine.LogitsAll}
		sameBits(t, fmt.Sprintf("%d rows", rows), step(t, e, s).Logits[0], want[start:start+rows])
		start += rows
	}
}

// TestGraphs: a decode step recorded as a graph and one launched kernel by kernel give the
// same tokens, for every number of sequences, whether tokens are drawn on the device or
// on the host.
func TestGraphs(t *testing.T) {
	longtest.Only(t)
	for _, kind := range cuda.WeightTypes() {
		t.Run(string(kind), func(t *testing.T) { testGraphs(t, loadAs(t, filepath.Join(familiesDir, "llama"), kind)) })
	}
}

func testGraphs(t *testing.T, w *cuda.Weights) {
	r := rand.New(rand.NewPCG(4, 1))
	const sequences = 11
	config := cuda.Config{Blocks: sequences * 2, BlockTokens: 16, MaxBatchTokens: 64, MaxSequences: sequences}
	recorded := newEngine(t, w, config)
	config.NoGraphs = true
	launched := newEngine(t, w, config)
	last := make([]int32, sequences)
	for i := range sequences {
		prompt := randomTokens(r, 1+r.IntN(20), w.Spec().VocabSize)
		s := engine.Sequence{Tokens: prompt, Blocks: table(2*i, 2), Sample: &engine.Sample{}}
		last[i] = step(t, recorded, s).Tokens[0]
		if got := step(t, launched, s).Tokens[0]; got != last[i] {
			t.Fatalf("prompt %d gives %d and %d", i, last[i], got)
		}
		last[i] = int32(len(prompt))<<16 | last[i]
	}
	for n := 1; n <= sequences; n++ {
		batch := make([]engine.Sequence, n)
		for i := range batch {
			batch[i] = engine.Sequence{Tokens: []int32{last[i] & 0xffff}, Start: int(last[i] >> 16), Blocks: table(2*i, 2)}
			switch r.IntN(4) {
			case 0: // draws nothing
			case 1:
				batch[i].Sample = &engine.Sample{Params: sampler.Params{Temperature: 0.8, TopP: 0.9, Seed: 5}, Offset: uint64(n)}
			default:
				batch[i].Sample = &engine.Sample{Offset: uint64(n)}
			}
		}
		got, want := step(t, recorded, batch...), step(t, launched, batch...)
		if !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("%d sequences: %v with a graph, %v without", n, got.Tokens, want.Tokens)
		}
	}
}

// TestStepsBesideEachOther: steps of all kinds in any order, recorded ones between prompts
// and of one size after another, give what an engine without graphs gives: nothing that one
// step was told is left for the next.
func TestStepsBesideEachOther(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "llama"))
	r := rand.New(rand.NewPCG(4, 3))
	const sequences, blocks, most = 9, 16, 450 // tokens of a sequence: more than one split of attention
	config := cuda.Config{Blocks: sequences * blocks, MaxBatchTokens: 600, MaxSequences: sequences}
	recorded := newEngine(t, w, config)
	config.NoGraphs = true
	launched := newEngine(t, w, config)
	var length [sequences]int
	for round := range 30 {
		decode := round%3 > 0
		var batch []engine.Sequence
		tokens := 0
		for _, i := range r.Perm(sequences)[:1+r.IntN(sequences)] {
			n := 1
			if !decode && r.IntN(2) == 0 {
				n += r.IntN(150)
			}
			if decode && length[i] == 0 || length[i]+n > most || tokens+n > config.MaxBatchTokens {
				continue
			}
			s := engine.Sequence{Tokens: randomTokens(r, n, w.Spec().VocabSize), Start: length[i], Blocks: table(i*blocks, blocks)}
			switch r.IntN(4) {
			case 0: // nothing comes of it
			case 1:
				s.Logits = engine.LogitsLast
			default:
				s.Sample = &engine.Sample{}
			}
			length[i] += n
			tokens += n
			batch = append(batch, s)
		}
		if len(batch) == 0 {
			continue
		}
		got, want := step(t, recorded, batch...), step(t, launched, batch...)
		if !slices.Equal(got.Tokens, want.Tokens) {
			t.Fatalf("%d sequences: %v with graphs, %v without", len(batch), got.Tokens, want.Tokens)
		}
		for i := range want.Logits {
			sameBits(t, fmt.Sprintf("sequence %d of %d", i, len(batch)), got.Logits[i], want.Logits[i])
		}
	}
	if slices.Max(length[:]) <= 256 {
		t.Errorf("contexts of %v never reached a second split", length)
	}
}
