package model_test

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// benchmarked is a shape of 34 million weights.
var benchmarked = model.Shape{
	Name: "benchmark", HiddenSize: 1024, Layers: 2, Heads: 16, KVHeads: 4, HeadSize: 64, FFNSize: 4096, VocabSize: 512,
	ContextTokens: 512, RopeTheta: 10000, TiedEmbeddings: true,
}

func BenchmarkSynthesize(b *testing.B) {
	root, i := b.TempDir(), 0
	for b.Loop() {
		if err := model.Synthesize(b.Context(), filepath.Join(root, strconv.Itoa(i)), benchmarked, model.SynthOptions{}); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkOpen reads from the page cache: it is the hash's speed.
func BenchmarkOpen(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "m")
	if err := model.Synthesize(b.Context(), dir, benchmarked, model.SynthOptions{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		m, err := model.Open(dir, model.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(m.Spec().Parameters() * 2)
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
