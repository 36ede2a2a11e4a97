package engine_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

func limits() (engine.Capacity, model.Spec) {
	return engine.Capacity{Blocks: 16, MaxBatchTokens: 12, MaxSequences: 3, Layout: kvcache.Layout{BlockTokens: 4}},
		model.Spec{VocabSize: 100, ContextTokens: 40}
}

func TestBatchValidate(t *testing.T) {
	type sequence = engine.Sequence
	run := func(n int) []int32 { return make([]int32, n) }
	table := func(ids ...kvcache.BlockID) []kvcache.BlockID { return ids }
	sampled := func(p sampler.Params) *engine.Sample { return &engine.Sample{Params: p} }
	for _, c := range []struct {
		name      string
		sequences []sequence
		says      string // empty: valid
	}{
		{"one token", []sequence{{Tokens: run(1), Blocks: table(0)}}, ""},
		{"a full batch", []sequence{{Tokens: run(12), Blocks: table(15, 0, 7)}}, ""},
		{"as many sequences as fit", []sequence{{Tokens: run(1), Blocks: table(0)}, {Tokens: run(1), Blocks: table(1)}, {Tokens: run(1), Blocks: table(2)}}, ""},
		{"the last position of the context", []sequence{{Tokens: run(1), Start: 39, Blocks: table(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)}}, ""},
		{"the last token of the vocabulary", []sequence{{Tokens: []int32{99}, Blocks: table(0)}}, ""},
		{"a shared prefix", []sequence{{Tokens: run(1), Start: 4, Blocks: table(0, 1)}, {Tokens: run(1), Start: 4, Blocks: table(0, 2)}}, ""},
		{"blocks that are not reached yet", []sequence{{Tokens: run(4), Blocks: table(0, -1, 99)}}, ""},
		{"a draw", []sequence{{Tokens: run(1), Blocks: table(0), Sample: sampled(sampler.Params{Temperature: 1, TopK: 5, TopP: 0.5, MinP: 0.1})}}, ""},

		{"empty", nil, "empty"},
		{"too many sequences", []sequence{{}, {}, {}, {}}, "4 sequences"},
		{"no tokens", []sequence{{Blocks: table(0)}}, "no tokens"},
		{"too many tokens in one", []sequence{{Tokens: run(13), Blocks: table(0, 1, 2, 3)}}, "13 tokens"},
		{"too many tokens in all", []sequence{{Tokens: run(6), Blocks: table(0, 1)}, {Tokens: run(7), Blocks: table(2, 3)}}, "13 tokens"},
		{"negative start", []sequence{{Tokens: run(1), Start: -1, Blocks: table(0)}}, "negative"},
		{"start that overflows", []sequence{{Tokens: run(4), Start: math.MaxInt - 2, Blocks: table(0)}}, "context"},
		{"most negative start", []sequence{{Tokens: run(1), Start: math.MinInt, Blocks: table(0)}}, "negative"},
		{"past the context", []sequence{{Tokens: run(2), Start: 39, Blocks: table(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}}, "context"},
		{"longer than the context", []sequence{{Tokens: run(41), Blocks: table(0)}}, "context"},
		{"past the table", []sequence{{Tokens: run(5), Blocks: table(0)}}, "past its 1 blocks"},
		{"no table", []sequence{{Tokens: run(1)}}, "past its 0 blocks"},
		{"negative block", []sequence{{Tokens: run(1), Blocks: table(-1)}}, "block -1"},
		{"unknown block", []sequence{{Tokens: run(1), Blocks: table(16)}}, "block 16"},
		{"unknown block of the prefix", []sequence{{Tokens: run(1), Start: 4, Blocks: table(16, 0)}}, "block 16"},
		{"negative token", []sequence{{Tokens: []int32{1, -1}, Blocks: table(0)}}, "token -1"},
		{"unknown token", []sequence{{Tokens: []int32{100}, Blocks: table(0)}}, "token 100"},
		{"unknown choice of logits", []sequence{{Tokens: run(1), Blocks: table(0), Logits: engine.LogitsAll + 1}}, "logits"},
		{"absurd temperature", []sequence{{Tokens: run(1), Blocks: table(0), Sample: sampled(sampler.Params{Temperature: float32(math.NaN())})}}, "temperature"},
		{"a block for two", []sequence{{Tokens: run(1), Blocks: table(5)}, {Tokens: run(1), Blocks: table(5)}}, "0 and 1 both write block 5"},
		{"a block twice", []sequence{{Tokens: run(5), Blocks: table(3, 3)}}, "write block 3"},
		{"a block read and written", []sequence{{Tokens: run(1), Start: 4, Blocks: table(5, 6)}, {Tokens: run(1), Blocks: table(5)}}, "0 reads block 5, which sequence 1 writes"},
		{"a block read and written by one", []sequence{{Tokens: run(1), Start: 4, Blocks: table(5, 5)}}, "reads block 5"},
		{"the second is named", []sequence{{Tokens: run(1), Blocks: table(0)}, {Tokens: []int32{-5}, Blocks: table(1)}}, "sequence 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			capacity, spec := limits()
			err := engine.Batch{Sequences: c.sequences}.Validate(capacity, spec)
			switch {
			case c.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("error %v, which should speak of %q", err, c.says)
			}
		})
	}
}

// FuzzBatchValidate: a batch that passes stays inside every bound.
func FuzzBatchValidate(f *testing.F) {
	f.Add([]byte{1, 2, 3}, 0, []byte{0}, 5, []byte{1})
	f.Add([]byte{1}, math.MaxInt, []byte{200}, math.MinInt, []byte{})
	f.Fuzz(func(t *testing.T, tokens []byte, start int, blocks []byte, otherStart int, otherBlocks []byte) {
		capacity, spec := limits()
		one, other := engine.Sequence{Start: start}, engine.Sequence{Start: otherStart, Tokens: []int32{1}}
		for _, b := range tokens {
			one.Tokens = append(one.Tokens, int32(int8(b)))
		}
		for _, b := range blocks {
			one.Blocks = append(one.Blocks, kvcache.BlockID(int8(b)))
		}
		for _, b := range otherBlocks {
			other.Blocks = append(other.Blocks, kvcache.BlockID(int8(b)))
		}
		batch := engine.Batch{Sequences: []engine.Sequence{one, other}}
		if batch.Validate(capacity, spec) != nil {
			return
		}
		size := capacity.Layout.BlockTokens
		writers := make(map[kvcache.BlockID]int)
		for i, s := range batch.Sequences {
			for p := s.Start; p < s.Start+len(s.Tokens); p += size - p%size {
				if other, taken := writers[s.Blocks[p/size]]; taken {
					t.Fatalf("sequences %d and %d write block %d", other, i, s.Blocks[p/size])
				}
				writers[s.Blocks[p/size]] = i
			}
		}
		for _, s := range batch.Sequences {
			for _, id := range s.Blocks[:s.Start/size] {
				if _, taken := writers[id]; taken {
					t.Fatalf("block %d is read and written", id)
				}
			}
			if slices.Max(s.Tokens) >= int32(spec.VocabSize) || slices.Min(s.Tokens) < 0 {
				t.Fatalf("tokens %v passed", s.Tokens)
			}
		}
	})
}
