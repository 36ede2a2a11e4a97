// Package benchtest has what the tests of several benchmarks need.
//
// Only tests import it. It starts no goroutines.
package benchtest

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Tiny loads the preset "tiny" with random weights of a type, for one thread, and closes it when the
// test ends.
func Tiny(t *testing.T, weights cpu.WeightType) *cpu.Weights {
	t.Helper()
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	return Random(t, shape, weights)
}

// Random is Tiny of another shape.
func Random(t *testing.T, shape model.Shape, weights cpu.WeightType) *cpu.Weights {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "random")
	if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{}); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, model.Options{Name: shape.Name})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cpu.Load(t.Context(), m, cpu.Config{Weights: weights, Threads: 1})
	if err := errors.Join(err, m.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}
