package cpu_test

import (
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestWeightBytes compares what is said before the weights are read with what they
// take.
func TestWeightBytes(t *testing.T) {
	for _, shape := range model.Presets() {
		if shape.VocabSize > 512 {
			continue
		}
		dir := filepath.Join(t.TempDir(), shape.Name)
		if err := model.Synthesize(t.Context(), dir, shape, model.SynthOptions{}); err != nil {
			t.Fatal(err)
		}
		m, err := model.Open(dir, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := cpu.Load(m, 1, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if said, took := cpu.WeightBytes(m.Spec()), w.Bytes(); took < said || float64(took) > 1.02*float64(said) {
			t.Errorf("%s: %d bytes said, %d taken", shape.Name, said, took)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
