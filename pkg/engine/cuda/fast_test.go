package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// fastFrom is the least number of rows whose products cuBLASLt computes.
const fastFrom = 65

// cublaslt is a configuration with products by cuBLASLt: the emulated one, or on a real GPU
// the one that TANDEM_CUBLASLT names or that the system has; without any the test is
// skipped.
func cublaslt(t testing.TB, config cuda.Config) cuda.Config {
	t.Helper()
	config.Products = cuda.CublasLt
	if gpu == "" {
		config.CublasLt = library(t)
		return config
	}
	config.CublasLt = os.Getenv("TANDEM_CUBLASLT")
	if err := cuda.FindCublasLt(config.CublasLt); err != nil && config.CublasLt == "" {
		t.Skip(err)
	}
	return config
}

func TestFastConformance(t *testing.T) {
	long(t)
	w := load(t, filepath.Join(familiesDir, "llama-llama3"))
	config := cublaslt(t, cuda.Config{Blocks: 40, MaxBatchTokens: 200, MaxSequences: 6})
	enginetest.Run(t, func(t *testing.T) engine.Engine { return newEngine(t, w, config) })
}

func TestFastReferences(t *testing.T) {
	long(t)
	e := newEngine(t, load(t, fableDir), cublaslt(t, cuda.Config{Blocks: 16, MaxBatchTokens: 512}))
	enginetest.RunReferenceLogits(t, fableDir, e)
}

// fastSlack is familySlack where gates and what they let through are rounded to bf16 too.
const fastSlack = 1.2

func TestFastFamilies(t *testing.T) {
	long(t)
	families := enginetest.Families(t, familiesDir)
	if !longtest.All() { // what is the library's is in all of them
		families = families[:2]
	}
	for _, dir := range families {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			enginetest.RunFamily(t, dir, newEngine(t, load(t, dir), cublaslt(t, cuda.Config{Blocks: 8, MaxBatchTokens: 256})), fastSlack)
		})
	}
}

// TestFastRows: whatever the number of rows, in whole buckets and beside them, with
// buffers full and with what longer steps left in them, the logits are those of the
// engine's own products up to rounding.
func TestFastRows(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "qwen2"))
	const most = 300
	config := cuda.Config{Blocks: 10, MaxBatchTokens: most, MaxSequences: 100}
	own, fast := newEngine(t, w, config), newEngine(t, w, cublaslt(t, config))
	if a, b := own.Capacity().Layout.ArithmeticClass, fast.Capacity().Layout.ArithmeticClass; a == b {
		t.Errorf("both compute %s", a)
	}
	r := rand.New(rand.NewPCG(6, 7))
	for _, n := range []int{most, fastFrom - 1, fastFrom, 128, 129, 257} {
		s := engine.Sequence{Tokens: randomTokens(r, n, w.Spec().VocabSize), Blocks: table(0, 10), Logits: engine.LogitsAll}
		got, want := step(t, fast, s).Logits[0], step(t, own, s).Logits[0]
		if n < fastFrom {
			sameBits(t, fmt.Sprintf("%d rows", n), got, want)
			continue
		}
		wide := make([][]float64, len(want))
		for i, row := range want {
			for _, x := range row {
				wide[i] = append(wide[i], float64(x))
			}
		}
		const limit = 0.01 // about what rounding does to these models
		if off := enginetest.Difference(got, wide); !(off < limit) || off == 0 {
			t.Errorf("%d rows: off by %.5f of their size", n, off)
		}
	}
}

// TestFastDecode: a decode step of as many sequences as cuBLASLt computes runs as a graph
// with its products, and gives what launches one by one give.
func TestFastDecode(t *testing.T) {
	w := load(t, filepath.Join(familiesDir, "llama"))
	const sequences = 80
	config := cublaslt(t, cuda.Config{Blocks: sequences, BlockTokens: 16, MaxBatchTokens: 160, MaxSequences: sequences})
	recorded := newEngine(t, w, config)
	config.NoGraphs = true
	launched := newEngine(t, w, config)
	r := rand.New(rand.NewPCG(8, 9))
	prompts, decode := make([]engine.Sequence, sequences), make([]engine.Sequence, sequences)
	for i := range prompts {
		prompts[i] = engine.Sequence{Tokens: randomTokens(r, 2, w.Spec().VocabSize), Blocks: table(i, 1)}
		decode[i] = engine.Sequence{Tokens: []int32{int32(i)}, Start: 2, Blocks: table(i, 1), Logits: engine.LogitsLast}
	}
	step(t, recorded, prompts...)
	step(t, launched, prompts...)
	got, want := step(t, recorded, decode...).Logits, step(t, launched, decode...).Logits
	for i := range want {
		sameBits(t, fmt.Sprintf("sequence %d", i), got[i], want[i])
	}
}

// fastSmall is small() with one step that cuBLASLt computes.
func fastSmall(path string) cuda.Config {
	return cuda.Config{Blocks: 8, MaxBatchTokens: 2 * fastFrom, MaxSequences: 4, Products: cuda.CublasLt, CublasLt: path}
}

func prompt(n int) engine.Sequence {
	return engine.Sequence{Tokens: make([]int32, n), Blocks: table(0, 5), Sample: &engine.Sample{}}
}

// TestFastNothingLeaks: whichever call of cuBLASLt fails at the start, nothing is left and
// the error names it.
func TestFastNothingLeaks(t *testing.T) {
	longtest.Only(t)
	path, control := emulated(t)
	for _, call := range []string{
		"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
	} {
		for _, after := range []int{0, 3} {
			control.Fail(call, after, 14)
			closeAll, _, err := open(t, path, fastSmall(path))
			control.Reset()
			switch {
			case err != nil:
				if !strings.Contains(err.Error(), call+": CUBLAS_STATUS_INTERNAL_ERROR (14)") {
					t.Errorf("%s fails: %v does not name it", call, err)
				}
			case after == 0:
				t.Fatalf("%s is never called: the test does not test it", call)
			default: // it is called less often
				if err := closeAll(); err != nil {
					t.Error(err)
				}
			}
			if live := control.Live(); live != (emulationtest.Live{}) {
				t.Fatalf("failure of %s leaves %+v", call, live)
			}
		}
	}
}

// TestFastSteps: steps ask cuBLASLt for products and for nothing else; a product that
// fails fails its step, and the next one gives what it would have given.
func TestFastSteps(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, fastSmall(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{"cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulAlgoGetHeuristic", "cuMemAlloc_v2"} {
		control.Fail(call, 0, 3)
	}
	want := map[int]int32{}
	for _, n := range []int{1, fastFrom - 1, fastFrom, 128, 129, 2 * fastFrom} {
		want[n] = step(t, e, prompt(n)).Tokens[0]
	}
	for _, n := range []int{fastFrom, 2 * fastFrom} {
		control.Fail("cublasLtMatmul", 2, 13)
		_, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{prompt(n)}})
		if err == nil || errors.Is(err, engine.ErrDeviceLost) || !strings.Contains(err.Error(), "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED (13)") {
			t.Errorf("%d rows: %v", n, err)
		}
		if got := step(t, e, prompt(n)).Tokens[0]; got != want[n] {
			t.Errorf("after a failed product of %d rows the token is %d, want %d", n, got, want[n])
		}
	}
	control.Fail("cublasLtMatmul", 0, 13)
	step(t, e, prompt(fastFrom-1)) // computes none
	control.Reset()
	if err := closeAll(); err != nil {
		t.Error(err)
	}
}

// TestFastDeviceLost: a lost device is told by the driver, whatever cuBLASLt says, and
// closing leaves nothing.
func TestFastDeviceLost(t *testing.T) {
	path, control := emulated(t)
	closeAll, e, err := open(t, path, fastSmall(path))
	if err != nil {
		t.Fatal(err)
	}
	step(t, e, prompt(fastFrom))
	control.Lose(illegalAddress)
	for range 2 {
		if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{prompt(fastFrom)}}); !errors.Is(err, engine.ErrDeviceLost) {
			t.Errorf("a step on a lost device: %v", err)
		}
	}
	_ = closeAll() // the driver's errors do not matter any more
	if live := control.Live(); live != (emulationtest.Live{}) {
		t.Errorf("left: %+v", live)
	}
}

func TestFastMissing(t *testing.T) {
	path, _ := emulated(t)
	config := fastSmall("/no/such/libcublasLt.so.12")
	_, _, err := open(t, path, config)
	if err == nil || !strings.Contains(err.Error(), "no cuBLASLt: /no/such/libcublasLt.so.12") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
	if err := cuda.FindCublasLt(config.CublasLt); err == nil || !strings.Contains(err.Error(), "install cuBLAS") {
		t.Errorf("the error is %v", err)
	}
	config.Products = "quick"
	if _, _, err = open(t, path, config); err == nil || !strings.Contains(err.Error(), `no library for products is called "quick": use own or cublaslt`) {
		t.Errorf("the error is %v", err)
	}
}
