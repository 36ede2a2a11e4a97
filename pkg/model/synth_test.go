package model_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

func TestSynth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/x"
	shape, err := model.Preset("bench-200m")
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{}); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	t.Log(m.Spec(), m.Spec().Parameters())
}
