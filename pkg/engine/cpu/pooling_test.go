package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// pooled is the mean of the hidden states of tokens, which are computed in chunks of random
// sizes, beside a sequence that draws from each of its own tokens' logits.
func pooled(t *testing.T, r *rand.Rand, e engine.Engine, tokens []int32, blocks, others []kvcache.BlockID) []float32 {
	t.Helper()
	pool := engine.NewPooling(e.Model().HiddenSize)
	for start, other := 0, 0; start < len(tokens); {
		n := 1 + r.IntN(len(tokens)-start)
		s := engine.Sequence{Tokens: tokens[start : start+n], Start: start, Blocks: blocks, Pooling: pool}
		if start += n; start == len(tokens) {
			s.Sample = &engine.Sample{Params: sampler.Params{}}
		}
		batch := engine.Batch{Sequences: []engine.Sequence{s}}
		if others != nil && other < 8 {
			beside := engine.Sequence{Tokens: []int32{5, 6}, Start: other, Blocks: others, Sample: &engine.Sample{Params: sampler.Params{}}}
			batch.Sequences = append([]engine.Sequence{beside, s}, engine.Sequence{Tokens: []int32{7, 8}, Start: other, Blocks: []kvcache.BlockID{others[0] + 1}})
			other += 2
		}
		out, err := e.Step(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		if others != nil && len(out.Tokens) == 3 && (out.Tokens[0] < 0 || out.Tokens[2] != -1) {
			t.Errorf("the others drew %v", out.Tokens)
		}
	}
	return pool.Mean()
}

// Hidden states are those of the architecture written down in float64, within what bf16 rounds,
// and the same bits with any instruction set, in any chunks, alone or beside others.
func TestHiddenStates(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, shape := range []model.Shape{
		{HiddenSize: 17, Layers: 2, Heads: 3, KVHeads: 1, HeadSize: 6, FFNSize: 33, VocabSize: 301},
		{HiddenSize: 96, Layers: 3, Heads: 14, KVHeads: 2, HeadSize: 16, FFNSize: 100, VocabSize: 400},
	} {
		shape.ContextTokens, shape.RopeTheta = 512, 10000
		m := synthesize(t, shape)
		tokens := randomTokens(r, 40, shape.VocabSize)
		want := make([]float64, shape.HiddenSize)
		for _, state := range hidden(t, m, tokens) {
			for i, x := range state {
				want[i] += x / float64(len(tokens))
			}
		}
		var first []float32
		w := loadAs(t, m, cpu.BF16, 2)
		for _, set := range kernels.Usable() {
			e := newEngine(t, w, cpu.Config{Blocks: 8, ISA: set.Name(), BlockTokens: 16})
			dirty(t, e)
			for range 3 {
				got := pooled(t, r, e, tokens, table(0, 3), nil)
				beside := pooled(t, r, e, tokens, table(3, 3), table(6, 1))
				if first == nil {
					first = got
				}
				for i := range first {
					if math.Float32bits(got[i]) != math.Float32bits(first[i]) || math.Float32bits(beside[i]) != math.Float32bits(first[i]) {
						t.Fatalf("%s: element %d is %v, and %v beside others, not %v", set.Name(), i, got[i], beside[i], first[i])
					}
				}
			}
		}
		var size, difference float64
		for i, x := range first {
			size += want[i] * want[i]
			difference += (float64(x) - want[i]) * (float64(x) - want[i])
		}
		if off := math.Sqrt(difference / size); !(off < 0.03) {
			t.Errorf("hidden size %d: the mean is off by %.4f of its size", shape.HiddenSize, off)
		} else {
			t.Logf("hidden size %d: the mean is off by %.4f of its size", shape.HiddenSize, off)
		}
	}
}
