package model_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tandem-serving/tandem/pkg/model"
)

// TestRandom: a model in memory is described as one on a disk, and its weights are drawn
// alike; those of one distribution share their bytes.
func TestRandom(t *testing.T) {
	for _, name := range []string{"tiny", "tiny-qwen2", "tiny-qwen3"} {
		shape := preset(t, name)
		m, err := model.Random(t.Context(), shape, 7)
		if err != nil {
			t.Fatal(err)
		}
		onDisk, err := model.Open(synthesize(t, shape, model.SynthOptions{}), model.Options{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(onDisk.Spec(), m.Spec(), cmpopts.IgnoreFields(model.Spec{}, "Digest", "Sampling")); d != "" || m.Spec().Digest != "" {
			t.Errorf("%s: digest %q, %s", name, m.Spec().Digest, d)
		}
		for i := range m.Spec().Layers {
			have, want := m.Layer(i), onDisk.Layer(i)
			for _, pair := range [][2]model.Tensor{
				{have.Q, want.Q}, {have.O, want.O}, {have.Down, want.Down}, {have.AttnNorm, want.AttnNorm}, {have.QBias, want.QBias}, {have.QNorm, want.QNorm},
			} {
				if d := cmp.Diff(pair[1].Shape, pair[0].Shape); d != "" || len(pair[0].Data) != len(pair[1].Data) {
					t.Errorf("%s, %s: %d bytes for %d, %s", name, pair[1].Name, len(pair[0].Data), len(pair[1].Data), d)
				}
			}
			spread(t, have.Q, 0, 0.125)
			if !bytes.Equal(have.Q.Data, m.Layer(0).Q.Data) || !bytes.HasPrefix(m.Embedding().Data, have.Q.Data) {
				t.Errorf("%s: layer %d has weights of its own", name, i)
			}
		}
		if err := onDisk.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRandomRefuses(t *testing.T) {
	shape := preset(t, "tiny")
	shape.VocabSize = 10
	if _, err := model.Random(t.Context(), shape, 0); err == nil {
		t.Error("a vocabulary of 10 is taken")
	}
}
