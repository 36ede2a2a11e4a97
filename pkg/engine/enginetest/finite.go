package enginetest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// ones is a slice that is no number in any type of keys and values: bytes of ones are NaN
// in bf16 and fp8, and so are the scales of what has some.
func ones(e engine.Engine) []byte {
	return bytes.Repeat([]byte{0xff}, e.Pages().Layout().SliceBytes)
}

// spoil makes a layer's keys and values in a block no numbers.
func spoil(t *testing.T, e engine.Engine, layer int, block kvcache.BlockID) {
	t.Helper()
	if err := e.Pages().Write(layer, []kvcache.BlockID{block}, ones(e)); err != nil {
		t.Fatal(err)
	}
}

// testNotFinite: of several sequences in a batch those whose context has a NaN get no
// token, whoever draws it, and the others get the tokens that they have alone.
func testNotFinite(t *testing.T, newEngine NewEngine) {
	const n, each, spoilt = 3, 5, 1
	alone := newEngine(t)
	layers := alone.Model().Layers
	for _, layer := range slices.Compact([]int{0, layers - 1}) {
		e := newEngine(t)
		var want [][]int32
		sequences := make([]engine.Sequence, n)
		for i, next := 0, 0; i < n; i++ {
			p := prompt(e, 5+16*i, 30+i)
			want = append(want, generate(t, alone, p, each, 0))
			sequences[i] = engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p)+each, next), Sample: draw(0)}
			next += len(sequences[i].Blocks)
		}
		table, position := sequences[spoilt].Blocks, 0
		for step := range each {
			if step == 2 { // the last tokens, which are in every window
				last := (sequences[spoilt].Start - 1) / e.Capacity().Layout.BlockTokens
				position = last * e.Capacity().Layout.BlockTokens
				spoil(t, e, layer, table[last])
			}
			tokens := mustStep(t, e, sequences...).Tokens
			for i, token := range tokens {
				s := &sequences[i]
				s.Start += len(s.Tokens)
				if i == spoilt && step >= 2 {
					if token != sampler.None {
						t.Errorf("layer %d: token %d of keys and values that are no numbers", layer, token)
					}
					s.Tokens = []int32{7}
					if step == 2 {
						checkFound(t, e, table, s.Start, layer, position)
					}
				} else {
					if token != want[i][step] {
						t.Errorf("layer %d: step %d of sequence %d drew %d beside one that fails, %d alone", layer, step, i, token, want[i][step])
					}
					s.Tokens = []int32{token}
				}
				s.Sample = draw(step + 1)
			}
			s := &sequences[spoilt]
			switch step {
			case 2: // what the host draws
				s.Sample.Logprobs, s.Sample.Params.RepetitionPenalty = true, 1.3
			case 3: // the likeliest
				s.Sample.Params = sampler.Params{}
			}
		}
	}
}

func checkFound(t *testing.T, e engine.Engine, table []kvcache.BlockID, tokens, layer, position int) {
	t.Helper()
	if found := engine.FindNotFinite(t.Context(), e, table, tokens); found.Layer != layer || found.Position != position {
		t.Errorf("layer %d, position %d is found, want layer %d, position %d", found.Layer, found.Position, layer, position)
	}
	if found := engine.FindNotFinite(t.Context(), e, table, position); found.Layer != -1 {
		t.Errorf("layer %d, position %d is found, which nobody spoilt", found.Layer, found.Position)
	}
}

// testFindNotFinite: what is no number is found at its token, and only if that is part of
// the sequence.
func testFindNotFinite(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	size := e.Capacity().Layout.BlockTokens
	length := min(size, e.Capacity().MaxBatchTokens)
	block := []kvcache.BlockID{3}
	read := func(tokens []int32) []byte {
		mustStep(t, e, engine.Sequence{Tokens: tokens, Blocks: block})
		slice := make([]byte, e.Pages().Layout().SliceBytes)
		if err := e.Pages().Read(0, block, slice); err != nil {
			t.Fatal(err)
		}
		return slice
	}
	tokens := prompt(e, length, 8)
	width, known := map[string]int{"bf16": 2, "int8": 2, "fp8": 1, "record64": 8}[e.Pages().Layout().ElementType] // int8: of a scale
	if !known {
		t.Fatalf("elements are %q: say how wide one is that can be no number", e.Pages().Layout().ElementType)
	}
	wrong := [][]byte{ones(e)}
	if width == 1 { // fp8 has two codes that are no number
		wrong = append(wrong, []byte{0x7f})
	}
	before := read(tokens)
	if found := engine.FindNotFinite(t.Context(), e, block, length); found.Layer != -1 || found.Position != -1 {
		t.Errorf("%+v is found in what is finite", found)
	}
	for at := range tokens {
		// In the first layer, where it sees no other, a token has bytes of its own: those
		// that differ if it is another one.
		other := slices.Clone(tokens)
		other[at] = (other[at] + 1) % int32(e.Model().VocabSize)
		after := read(other)
		spoilt := slices.Clone(before)
		for i := 0; i < len(spoilt); i += width {
			if number := spoilt[i : i+width]; !bytes.Equal(number, after[i:i+width]) {
				copy(number, wrong[at%len(wrong)])
			}
		}
		if err := e.Pages().Write(0, block, spoilt); err != nil {
			t.Fatal(err)
		}
		if found := engine.FindNotFinite(t.Context(), e, block, length); found.Layer != 0 || found.Position != at {
			t.Errorf("token %d of %d: %+v is found", at, length, found)
		}
		if found := engine.FindNotFinite(t.Context(), e, block, at); found.Layer != -1 {
			t.Errorf("%d tokens before one that is no number: %+v is found", at, found)
		}
	}
}
