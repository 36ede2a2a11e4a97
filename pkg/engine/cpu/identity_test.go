package cpu_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// inEachType runs a test for every type of weights.
func inEachType(t *testing.T, test func(t *testing.T, kind cpu.WeightType)) {
	for _, kind := range []cpu.WeightType{cpu.BF16, cpu.Int8, cpu.Int4} {
		t.Run(string(kind), func(t *testing.T) { test(t, kind) })
	}
}

// class is an arithmetic class.
type class struct {
	weights cpu.WeightType
	kv      cpu.KVType
}

// inEachClass runs a test for the arithmetic classes. Weights and KV meet nowhere, so
// that one class with KV in int8 stands for all.
func inEachClass(t *testing.T, test func(t *testing.T, c class)) {
	for _, c := range []class{{cpu.BF16, cpu.KVBF16}, {cpu.Int8, cpu.KVBF16}, {cpu.Int4, cpu.KVBF16}, {cpu.BF16, cpu.KVInt8}} {
		name := string(c.weights)
		if c.kv != cpu.KVBF16 {
			name = string(c.kv) + "-kv"
		}
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// sameBits compares rows of logits bit for bit.
func sameBits(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows of logits, want %d", what, len(got), len(want))
	}
	for r := range want {
		for i := range want[r] {
			if math.Float32bits(got[r][i]) != math.Float32bits(want[r][i]) {
				t.Fatalf("%s: logit %d of row %d is %x, want %x", what, i, r, got[r][i], want[r][i])
			}
		}
	}
}

// logitsOf computes tokens in one step, from an empty sequence.
func logitsOf(t *testing.T, e engine.Engine, tokens []int32, blocks []kvcache.BlockID) [][]float32 {
	t.Helper()
	return step(t, e, engine.Sequence{Tokens: tokens, Blocks: blocks, Logits: engine.LogitsAll}).Logits[0]
}

// feed computes tokens[start:end] in random chunks.
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
	for layer := range e.Model().Layers {
		for b := range e.Capacity().Blocks {
			for i, slice := 0, e.Pages().View(layer, kvcache.BlockID(b)); i < len(slice); i++ {
				slice[i] = 0xff
			}
		}
	}
}

// TestChunkingAndThreads: one chunk or many, one thread or three, over more
// than two attention splits.
func TestChunkingAndThreads(t *testing.T) { inEachClass(t, chunkingAndThreads) }

func chunkingAndThreads(t *testing.T, c class) {
	w := loadFableAs(t, c.weights, 3)
	r := rand.New(rand.NewPCG(1, 1))
	tokens := randomTokens(r, 600, w.Spec().VocabSize)
	want := logitsOf(t, newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 20, MaxBatchTokens: 600, Threads: 1}), tokens, table(0, 19))
	for _, threads := range []int{1, 2, 3} {
		for _, blockTokens := range []int{16, 32, 256} {
			e := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 50, MaxBatchTokens: 600, Threads: threads, BlockTokens: blockTokens})
			dirty(t, e)
			what := fmt.Sprintf("%d threads, blocks of %d", threads, blockTokens)
			sameBits(t, what, feed(t, r, e, tokens, 0, table(3, (600+blockTokens-1)/blockTokens)), want)
		}
	}
}

// TestLayersTogether: layers are computed together where nobody waits for the keys
// of each, and that changes nothing.
func TestLayersTogether(t *testing.T) { inEachClass(t, layersTogether) }

func layersTogether(t *testing.T, c class) {
	w := loadFableAs(t, c.weights, 3)
	r := rand.New(rand.NewPCG(4, 4))
	tokens := randomTokens(r, 90, w.Spec().VocabSize)
	for _, threads := range []int{1, 2, 3} {
		alone := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 20, MaxBatchTokens: 90, Threads: threads})
		together := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 20, MaxBatchTokens: 90, Threads: threads})
		dirty(t, alone)
		dirty(t, together)
		for start := 0; start < len(tokens); {
			n := min(1+r.IntN(30), len(tokens)-start)
			s := engine.Sequence{Tokens: tokens[start : start+n], Start: start, Blocks: table(0, 3), Logits: engine.LogitsWanted(r.IntN(3))}
			var done []int
			want, err := alone.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}, LayerDone: func(layer int) { done = append(done, layer) }})
			if err != nil {
				t.Fatal(err)
			}
			if len(done) != w.Spec().Layers || !slices.IsSorted(done) {
				t.Errorf("layers done: %v", done)
			}
			got := step(t, together, s)
			if s.Logits != engine.LogitsNone {
				sameBits(t, fmt.Sprintf("%d threads, %d tokens from %d on", threads, n, start), got.Logits[0], want.Logits[0])
			}
			start += n
		}
		for layer := range w.Spec().Layers {
			for b := range kvcache.BlockID(2) { // those that are full
				if !bytes.Equal(together.Pages().View(layer, b), alone.Pages().View(layer, b)) {
					t.Errorf("%d threads: block %d of layer %d differs", threads, b, layer)
				}
			}
		}
	}
}

// TestBatches: sequences of random lengths advance by random steps in random
// company, each on blocks strewn over the pool.
func TestBatches(t *testing.T) { inEachClass(t, batches) }

func batches(t *testing.T, c class) {
	w := loadFableAs(t, c.weights, 2)
	r := rand.New(rand.NewPCG(2, 2))
	e := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 100, MaxBatchTokens: 256, MaxSequences: 8})
	dirty(t, e)
	n := 8
	if testing.Short() {
		n = 3
	}
	var free []kvcache.BlockID
	for _, b := range r.Perm(100) {
		free = append(free, kvcache.BlockID(b))
	}
	tokens, want, got := make([][]int32, n), make([][][]float32, n), make([][][]float32, n)
	tables, at := make([][]kvcache.BlockID, n), make([]int, n)
	alone := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 10, MaxBatchTokens: 300})
	for i := range n {
		tokens[i] = randomTokens(r, 1+r.IntN(290), w.Spec().VocabSize)
		want[i] = logitsOf(t, alone, tokens[i], table(0, 10))
		tables[i], free = free[:10], free[10:]
	}
	for {
		var batch []engine.Sequence
		var who []int
		room := 256
		for _, i := range r.Perm(n) {
			left := len(tokens[i]) - at[i]
			if left == 0 || room == 0 || r.IntN(4) == 0 {
				continue
			}
			k := min(left, room, 1+r.IntN(1+r.IntN(100)))
			batch = append(batch, engine.Sequence{Tokens: tokens[i][at[i] : at[i]+k], Start: at[i], Blocks: tables[i], Logits: engine.LogitsAll})
			who = append(who, i)
			at[i] += k
			room -= k
		}
		if len(batch) == 0 {
			if slices.EqualFunc(at, tokens, func(a int, s []int32) bool { return a == len(s) }) {
				break
			}
			continue
		}
		for j, rows := range step(t, e, batch...).Logits {
			got[who[j]] = append(got[who[j]], rows...)
		}
	}
	for i := range n {
		sameBits(t, fmt.Sprintf("sequence %d", i), got[i], want[i])
	}
}

// TestInstructionSets: every implementation gives the bits of the portable one,
// through a whole model.
func TestInstructionSets(t *testing.T) { inEachClass(t, instructionSets) }

func instructionSets(t *testing.T, c class) {
	w := loadFableAs(t, c.weights, 2)
	r := rand.New(rand.NewPCG(3, 3))
	tokens := randomTokens(r, 24, w.Spec().VocabSize)
	want := logitsOf(t, newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 2, ISA: "portable"}), tokens, table(0, 2))
	long := randomTokens(r, 530, w.Spec().VocabSize)
	var wantLong [][]float32
	for _, set := range kernels.Usable() {
		if set.Name() == "portable" {
			continue
		}
		e := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 20, ISA: set.Name()})
		dirty(t, e)
		sameBits(t, set.Name(), feed(t, r, e, tokens, 0, table(0, 2)), want)
		rows := feed(t, r, e, long, 0, table(2, 17))
		if wantLong == nil {
			wantLong = rows
		}
		sameBits(t, set.Name(), rows, wantLong)
	}
}

// TestHandOver copies pages to other blocks of another engine, one with another
// instruction set and number of threads, and goes on there.
func TestHandOver(t *testing.T) { inEachClass(t, handOver) }

func handOver(t *testing.T, c class) {
	w := loadFableAs(t, c.weights, 2)
	r := rand.New(rand.NewPCG(4, 4))
	tokens := randomTokens(r, 400, w.Spec().VocabSize)
	want := logitsOf(t, newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 13}), tokens, table(0, 13))
	sets := kernels.Usable()
	for _, cut := range []int{1, 31, 32, 255, 256, 257, 399} {
		from := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 20})
		to := newEngine(t, w, cpu.Config{KV: c.kv, Blocks: 30, Threads: 1, ISA: sets[max(0, len(sets)-2)].Name()})
		dirty(t, from)
		dirty(t, to)
		source, target := table(5, 13), table(9, 13)
		slices.Reverse(target)
		sameBits(t, "before", feed(t, r, from, tokens[:cut], 0, source), want[:cut])
		used := (cut + 31) / 32
		buffer := make([]byte, used*from.Pages().Layout().SliceBytes)
		for layer := range from.Model().Layers {
			if err := from.Pages().Read(layer, source[:used], buffer); err != nil {
				t.Fatal(err)
			}
			if err := to.Pages().Write(layer, target[:used], buffer); err != nil {
				t.Fatal(err)
			}
		}
		sameBits(t, "after", feed(t, r, to, tokens, cut, target), want[cut:])
	}
}

// TestDividedAttention decodes behind a long context, alone and in company: threads then
// share an item's context, and one thread does not. What the context is does not matter.
func TestDividedAttention(t *testing.T) {
	for _, kv := range []cpu.KVType{cpu.KVBF16, cpu.KVInt8} {
		t.Run(string(kv), func(t *testing.T) { dividedAttention(t, kv) })
	}
}

func dividedAttention(t *testing.T, kv cpu.KVType) {
	w := load(t, synthesize(t, model.Shape{
		HiddenSize: 16, Layers: 2, Heads: 16, KVHeads: 1, HeadSize: 128, FFNSize: 16, VocabSize: 300, ContextTokens: 4096, RopeTheta: 10000,
	}), 4)
	const context, other, steps = 2300, 300, 4
	run := func(threads int) [][]float32 {
		e := newEngine(t, w, cpu.Config{KV: kv, Blocks: 90, MaxBatchTokens: 8, Threads: threads})
		r := rand.New(rand.NewPCG(6, 6))
		for layer := range e.Model().Layers {
			for b := range e.Capacity().Blocks {
				slice := e.Pages().View(layer, kvcache.BlockID(b))
				codes := 0 // in int8, before bf16 scales that make of them what bf16 would be
				if kv == cpu.KVInt8 {
					codes = len(slice) / (128 + 2) * 128
				}
				for i := range slice[:codes] {
					slice[i] = byte(r.IntN(255) - 127)
				}
				for i := codes; i < len(slice); i += 2 {
					value := r.NormFloat64()
					if codes > 0 {
						value = math.Abs(value) / 64
					}
					x := math.Float32bits(float32(value)) >> 16
					slice[i], slice[i+1] = byte(x), byte(x>>8)
				}
			}
		}
		var rows [][]float32
		for i := range steps {
			batch := []engine.Sequence{{Tokens: []int32{5}, Start: context + i, Blocks: table(0, 73), Logits: engine.LogitsAll}}
			if i%2 == 1 {
				batch = append(batch, engine.Sequence{Tokens: []int32{7, 8}, Start: other + 2*i, Blocks: table(73, 10), Logits: engine.LogitsAll})
			}
			for _, logits := range step(t, e, batch...).Logits {
				rows = append(rows, logits...)
			}
		}
		return rows
	}
	want := run(1)
	for _, threads := range []int{2, 4} {
		sameBits(t, fmt.Sprintf("%d threads", threads), run(threads), want)
	}
}
