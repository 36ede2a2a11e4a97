package engine_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

func TestCosts(t *testing.T) {
	// Linear weights of a layer: 8·(2·8 + 2·4) + 3·8·10 = 432.
	spec := model.Spec{HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 10, VocabSize: 100}
	const (
		weights = 3 * 432.0
		head    = 800.0
		look    = 4 * 8 * 3.0     // FLOPs of a token at a position: two products
		kv      = 2 * 4 * 3 * 2.0 // bytes of a position
	)
	prompt := engine.Sequence{Tokens: make([]int32, 10), Start: 20}
	last := engine.Sequence{Tokens: make([]int32, 10), Start: 20, Sample: &engine.Sample{Params: sampler.Params{}}}
	token := engine.Sequence{Tokens: make([]int32, 1), Start: 20, Sample: &engine.Sample{}}
	for _, c := range []struct {
		name            string
		batch           []engine.Sequence
		prefill, decode engine.Cost
	}{
		{"nothing", nil, engine.Cost{}, engine.Cost{}},
		{"a chunk", []engine.Sequence{prompt}, engine.Cost{FLOPs: 20*weights + look*250, ReadBytes: 2*weights + 30*kv}, engine.Cost{}},
		{"the last chunk", []engine.Sequence{last}, engine.Cost{FLOPs: 20*weights + look*250 + 2*head, ReadBytes: 2*weights + 2*head + 30*kv}, engine.Cost{}},
		{"two tokens", []engine.Sequence{token, token}, engine.Cost{}, engine.Cost{FLOPs: 4*weights + look*41 + 4*head, ReadBytes: 2*weights + 2*head + 42*kv}},
		{"mixed", []engine.Sequence{prompt, token},
			engine.Cost{FLOPs: 20*weights + look*250, ReadBytes: 2*weights + 2*head + 30*kv},
			engine.Cost{FLOPs: 2*weights + look*20.5 + 2*head, ReadBytes: 21 * kv}},
	} {
		prefill, decode := engine.NewCosts(spec, engine.BytesPerWeight{}, 0).Step(engine.Batch{Sequences: c.batch}.Work())
		if prefill != c.prefill || decode != c.decode {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", c.name, prefill, decode, c.prefill, c.decode)
		}
	}
}

// TestWeightBytes: weights that are not two bytes each are read as what they are, and
// the cost of computing stays.
func TestWeightBytes(t *testing.T) {
	spec := model.Spec{HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 10, VocabSize: 100}
	const weights, head, kv = 3 * 432.0, 800.0, 3 * 2 * 4 * 2.0
	token := engine.Sequence{Tokens: make([]int32, 1), Start: 20, Sample: &engine.Sample{}}
	work := engine.Batch{Sequences: []engine.Sequence{token}}.Work()
	_, plain := engine.NewCosts(spec, engine.BytesPerWeight{}, 0).Step(work)
	for bytes, want := range map[engine.BytesPerWeight]float64{
		{}:                         2*weights + 2*head,
		{Layers: 1.25, Head: 1.25}: 1.25*weights + 1.25*head,
		{Layers: 0.5, Head: 1}:     0.5*weights + head,
		{Layers: 0.5}:              0.5*weights + 2*head,
	} {
		if _, got := engine.NewCosts(spec, bytes, 0).Step(work); got.FLOPs != plain.FLOPs || got.ReadBytes != want+21*kv {
			t.Errorf("%+v a weight: %+v", bytes, got)
		}
	}
	// Keys and values of a byte an element, and two more for the scale of each head.
	for bytes, want := range map[float64]float64{0: kv, 2 * (4 + 2): 3 * 2 * (4 + 2)} {
		if _, got := engine.NewCosts(spec, engine.BytesPerWeight{}, bytes).Step(work); got.FLOPs != plain.FLOPs || got.ReadBytes != 2*weights+2*head+21*want {
			t.Errorf("%v bytes a token: %+v", bytes, got)
		}
	}
}

// TestWindowedCosts: of three layers, two have a window of 8 tokens.
func TestWindowedCosts(t *testing.T) {
	spec := model.Spec{HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 10, VocabSize: 100, LayerWindows: []int{8, 0, 8}}
	const weights, look, kv = 3 * 432.0, 4 * 8.0, 2 * 4 * 2.0
	sequence := func(start, tokens int) engine.Sequence {
		return engine.Sequence{Tokens: make([]int32, tokens), Start: start}
	}
	for _, c := range []struct {
		name            string
		batch           []engine.Sequence
		prefill, decode engine.Cost
	}{
		{"a chunk past the window", []engine.Sequence{sequence(20, 10)},
			engine.Cost{FLOPs: 20*weights + look*(250+2*80), ReadBytes: 2*weights + kv*(30+2*17)}, engine.Cost{}},
		{"a prompt within it", []engine.Sequence{sequence(0, 6)},
			engine.Cost{FLOPs: 12*weights + look*3*18, ReadBytes: 2*weights + kv*3*6}, engine.Cost{}},
		{"tokens past it", []engine.Sequence{sequence(20, 1), sequence(90, 1)}, engine.Cost{},
			engine.Cost{FLOPs: 4*weights + look*(111+2*16), ReadBytes: 2*weights + kv*(112+2*16)}},
	} {
		prefill, decode := engine.NewCosts(spec, engine.BytesPerWeight{}, 0).Step(engine.Batch{Sequences: c.batch}.Work())
		if prefill != c.prefill || decode != c.decode {
			t.Errorf("%s: %+v and %+v, want %+v and %+v", c.name, prefill, decode, c.prefill, c.decode)
		}
	}
}
