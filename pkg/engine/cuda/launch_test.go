package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestKernelsOfALayer: a layer of a decode step is six kernels where rows are few, and one
// more if heads have norms or are of a size that the product cannot place.
func TestKernelsOfALayer(t *testing.T) {
	for dir, want := range map[string]int{"../../../models/fable": 6, "../cpu/testdata/families/qwen3": 7, "../cpu/testdata/families/llama": 7} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			e := openForLaunches(t, dir)
			e.single = true
			for _, rows := range []int{1, 8, 9, 16} {
				e.rows = rows
				for layer := range e.weights.spec.Layers {
					e.program.Reset()
					e.keys(layer)
					e.rest(layer, e.whole())
					if got := e.program.Len(); got != want {
						t.Errorf("layer %d of %d rows is %d kernels, want %d", layer, rows, got, want)
					}
				}
			}
			e.program.Reset()
		})
	}
}

func openForLaunches(t *testing.T, dir string) *cudaEngine {
	t.Helper()
	library := os.Getenv("TANDEM_CUDA_DRIVER")
	if library == "" {
		library = emulationtest.Library(t)
	}
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Load(t.Context(), m, Config{Driver: library})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	e, err := w.NewEngine(Config{Blocks: 40, MaxBatchTokens: 64, MaxSequences: 32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return e.(*cudaEngine)
}
