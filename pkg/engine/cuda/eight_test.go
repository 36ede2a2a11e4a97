package cuda_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
)

// eightBits are the types of a byte an element.
var eightBits = []cuda.WeightType{cuda.Int8, cuda.FP8}

// representable makes of a row of bf16 one whose largest magnitude is the largest code's, by
// a power of two, and the others codes: a type's scale is that power then, and nothing is
// rounded.
func representable(row []byte, kind cuda.WeightType) {
	at := func(i int) float64 {
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16))
	}
	n, largest := len(row)/2, 0
	for i := range n {
		if math.Abs(at(i)) > math.Abs(at(largest)) {
			largest = i
		}
	}
	if at(largest) == 0 {
		return
	}
	most := map[cuda.WeightType]float64{cuda.Int8: 127, cuda.FP8: 448}[kind]
	_, exponent := math.Frexp(math.Abs(at(largest)) / most)
	for i := range n {
		x := math.Ldexp(at(i), -exponent)
		switch {
		case i == largest:
			x = math.Copysign(most, x)
		case kind == cuda.Int8:
			x = math.RoundToEven(x)
		default: // four bits of significand, and steps of 2^-9 at least
			_, e := math.Frexp(x)
			step := math.Ldexp(1, max(e-4, -9))
			x = math.RoundToEven(x/step) * step
		}
		bits := math.Float32bits(float32(math.Ldexp(x, exponent)))
		binary.LittleEndian.PutUint16(row[2*i:], uint16(bits>>16))
	}
}

// exactly is a copy of the model in dir whose layers' matrices, and for Int8 the one of its
// output, have only what a type of 8 bits can be.
func exactly(t *testing.T, dir string, kind cuda.WeightType) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	start := 8 + binary.LittleEndian.Uint64(file)
	var tensors map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:start], &tensors); err != nil {
		t.Fatal(err)
	}
	for name, tensor := range tensors {
		if len(tensor.Shape) != 2 || !strings.Contains(name, ".layers.") && kind != cuda.Int8 {
			continue
		}
		if tensor.DType != "BF16" {
			t.Fatalf("%s is %s", name, tensor.DType)
		}
		data := file[start:][tensor.Offsets[0]:tensor.Offsets[1]]
		for row := range slices.Chunk(data, 2*tensor.Shape[1]) {
			representable(row, kind)
		}
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	err = errors.Join(os.WriteFile(filepath.Join(to, "model.safetensors"), file, 0o600), os.WriteFile(filepath.Join(to, "config.json"), config, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestEightBitsAreExact: where 8 bits and scales that are powers of two lose nothing, logits
// have the bits of bf16, whichever kernels compute them: biases, norms of heads, heads with
// zeros between them, outputs tied and not.
func TestEightBitsAreExact(t *testing.T) {
	for i, family := range []string{"llama", "mistral-nemo", "qwen2", "qwen3"} {
		for _, kind := range eightBits {
			t.Run(family+"/"+string(kind), func(t *testing.T) {
				if family != "qwen3" {
					long(t)
				}
				dir := exactly(t, filepath.Join(familiesDir, family), kind)
				plain, eight := loadAs(t, dir, cuda.BF16), loadAs(t, dir, kind)
				r := rand.New(rand.NewPCG(11, uint64(i)))
				const n = 45
				tokens := randomTokens(r, n, plain.Spec().VocabSize)
				config := cuda.Config{Blocks: 2, MaxBatchTokens: n}
				var logits [2][][]float32
				for j, w := range []*cuda.Weights{plain, eight} {
					e := newEngine(t, w, config)
					for _, part := range [][2]int{{0, 40}, {40, 41}, {41, n}} {
						out := step(t, e, engine.Sequence{Tokens: tokens[part[0]:part[1]], Start: part[0], Blocks: table(0, 2), Logits: engine.LogitsAll})
						logits[j] = append(logits[j], out.Logits[0]...)
					}
				}
				sameBits(t, string(kind), logits[1], logits[0])
			})
		}
	}
}

// TestEightBitsFootprint: weights take the memory that is planned for them, about half of
// bf16's, and what made them is given back.
func TestEightBitsFootprint(t *testing.T) {
	path, control := emulated(t)
	for _, kind := range cuda.WeightTypes() {
		m, err := model.Open(fableDir, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var done, total int64
		w, err := cuda.Load(t.Context(), m, cuda.Config{Driver: path, Weights: kind, Progress: func(d, n int64) { done, total = d, n }})
		if err := errors.Join(err, m.Close()); err != nil {
			t.Fatal(err)
		}
		spec := w.Spec()
		if live := control.Live(); live.Bytes != cuda.WeightBytes(spec, kind) || live.Bytes != w.Bytes() || live.Allocations != 1 || live.Pinned != 0 {
			t.Errorf("%s: planned %d bytes, and there are %+v", kind, w.Bytes(), live)
		}
		if done != total || total == 0 {
			t.Errorf("%s: %d of %d bytes are said to be done", kind, done, total)
		}
		if w.Type() != kind {
			t.Errorf("%s calls itself %s", kind, w.Type())
		}
		matrices := int64(spec.Layers) * int64(spec.HiddenSize*(2*spec.Heads+2*spec.KVHeads)*spec.HeadSize+3*spec.HiddenSize*spec.FFNSize)
		saved := cuda.WeightBytes(spec, cuda.BF16) - w.Bytes()
		output := int64(0)
		if kind == cuda.Int8 { // which has a copy of the tied output
			output = int64(spec.VocabSize * (spec.HiddenSize + 4))
		}
		if want := matrices - output; kind != cuda.BF16 && (saved > want || saved < want*97/100) {
			t.Errorf("%s saves %d bytes, want about %d", kind, saved, want)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestEightBitsLeakNothing, whatever call fails while weights are loaded.
func TestEightBitsLeakNothing(t *testing.T) {
	longtest.Only(t)
	path, control := emulated(t)
	for _, call := range []string{"cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"} {
		for after := range 60 {
			control.Fail(call, after, outOfMemory)
			m, err := model.Open(filepath.Join(familiesDir, "llama"), model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			w, err := cuda.Load(t.Context(), m, cuda.Config{Driver: path, Weights: cuda.FP8})
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			control.Reset()
			switch {
			case err == nil && after == 0:
				t.Errorf("%s is never called: the test does not test it", call)
				fallthrough
			case err == nil:
				err = w.Close()
				if err != nil {
					t.Error(err)
				}
			case !strings.Contains(err.Error(), call):
				t.Errorf("%s fails: %v does not name it", call, err)
			}
			if live := control.Live(); live != (emulationtest.Live{}) {
				t.Fatalf("failure of %s leaves %+v", call, live)
			}
			if w != nil { // it is called less often
				break
			}
		}
	}
}

// TestEightBitsRefused: what does not go together is refused in words.
func TestEightBitsRefused(t *testing.T) {
	w := loadAs(t, filepath.Join(familiesDir, "llama"), cuda.Int8)
	_, err := w.NewEngine(cuda.Config{Blocks: 4, Products: cuda.CublasLt})
	if err == nil || !strings.Contains(err.Error(), "cublaslt multiplies only weights in bf16, and these are in int8: load them as bf16") {
		t.Errorf("with cuBLASLt: %v", err)
	}
	m, err := model.Open(fableDir, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cuda.Load(t.Context(), m, cuda.Config{Driver: library(t), Weights: "int4"})
	if err == nil || !strings.Contains(err.Error(), `"int4" is not a weight type of the CUDA engine: use one of [bf16 int8 fp8]`) {
		t.Errorf("int4: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	classes := map[string]bool{}
	for _, kind := range cuda.WeightTypes() {
		class := cuda.ArithmeticClass(kind, cuda.KVBF16, cuda.Own)
		if classes[class] || !strings.HasPrefix(class, fmt.Sprintf("cuda/%s/bf16/", kind)) {
			t.Errorf("weights in %s are class %s", kind, class)
		}
		classes[class] = true
	}
	if got := newEngine(t, w, cuda.Config{Blocks: 4}).Capacity().Layout.ArithmeticClass; !strings.HasPrefix(got, "cuda/int8/bf16/") {
		t.Errorf("an engine with weights in int8 computes %s", got)
	}
}
