package cuda_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
)

const (
	fableDir    = "../../../models/fable"
	familiesDir = "../cpu/testdata/families"
)

// gpu is the driver of a real GPU for tests to run on, such as libcuda.so.1; empty: they
// run on the emulated one.
var gpu = os.Getenv("TANDEM_CUDA_DRIVER")

// library is the driver that tests run on.
func library(t testing.TB) string {
	t.Helper()
	if gpu != "" {
		return gpu
	}
	return emulationtest.Library(t)
}

// long skips a test that takes long on the emulated GPU, unless tests may.
func long(t testing.TB) {
	t.Helper()
	if gpu == "" {
		longtest.Only(t)
	}
}

// emulated skips tests of what only an emulated driver can be made to do.
func emulated(t testing.TB) (path string, control *emulationtest.Control) {
	t.Helper()
	if gpu != "" {
		t.Skip("a GPU cannot be made to do that")
	}
	path = emulationtest.Library(t)
	return path, emulationtest.NewControl(t, path)
}

func load(t testing.TB, dir string) *cuda.Weights {
	t.Helper()
	return loadAs(t, dir, cuda.BF16)
}

func loadAs(t testing.TB, dir string, kind cuda.WeightType) *cuda.Weights {
	t.Helper()
	m, err := model.Open(dir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, device := emulationtest.GPU(t)
	w, err := cuda.Load(t.Context(), m, cuda.Config{Driver: library(t), Device: device, Weights: kind})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Close(); err != nil { // the device has copies
		t.Fatal(err)
	}
	return w
}

func newEngine(t testing.TB, w *cuda.Weights, config cuda.Config) engine.Engine {
	t.Helper()
	e, err := w.NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// table is blocks first, first+1, ...
func table(first, n int) []kvcache.BlockID { return kvcache.BlockRange(first, n) }

func step(t testing.TB, e engine.Engine, sequences ...engine.Sequence) engine.Output {
	t.Helper()
	out, err := e.Step(t.Context(), engine.Batch{Sequences: sequences})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestConformance(t *testing.T) {
	for _, kind := range cuda.WeightTypes() {
		t.Run(string(kind), func(t *testing.T) {
			if kind != cuda.BF16 {
				long(t)
			}
			w := loadAs(t, filepath.Join(familiesDir, "llama-llama3"), kind)
			fresh := func(t *testing.T) engine.Engine {
				return newEngine(t, w, cuda.Config{Blocks: 40, MaxBatchTokens: 64, MaxSequences: 6})
			}
			enginetest.Run(t, fresh)
			t.Run("logits", func(t *testing.T) { enginetest.RunLogits(t, fresh) })
		})
	}
}

func TestReferences(t *testing.T) {
	e := newEngine(t, load(t, fableDir), cuda.Config{Blocks: 16, MaxBatchTokens: 512})
	prompts := 0 // all
	if gpu == "" {
		prompts = 1
	}
	t.Run("logits", func(t *testing.T) { enginetest.RunReferenceLogits(t, fableDir, e) })
	t.Run("continuations", func(t *testing.T) {
		long(t)
		enginetest.RunReferenceContinuations(t, fableDir, e, prompts)
	})
}

// familySlack is how many times the error of rounding to bf16 the engine's may be.
const familySlack = 1.1

func TestFamilies(t *testing.T) {
	for i, dir := range enginetest.Families(t, familiesDir) {
		if i > 0 && !longtest.Wanted() {
			break
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			enginetest.RunFamilyDeferred(t, dir, newEngine(t, load(t, dir), cuda.Config{Blocks: 8, MaxBatchTokens: 256}), familySlack)
		})
	}
}
