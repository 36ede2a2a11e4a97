package blaslt_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// product is a product with its matrices on the host.
type product struct {
	shape  blaslt.Shape
	a, w   []uint16
	before []float32 // of out, where that is float32
}

func randomProduct(r *rand.Rand, narrow, add bool) product {
	s := blaslt.Shape{Rows: 1 + r.IntN(150), Outputs: 1 + r.IntN(90), K: 8 * (1 + r.IntN(60)), Narrow: narrow, Add: add}
	s.LdA, s.LdW, s.LdOut = s.K+8*r.IntN(3), s.K+8*r.IntN(3), (s.Outputs+7)/8*8+8*r.IntN(3)
	p := product{shape: s, a: make([]uint16, s.Rows*s.LdA), w: make([]uint16, s.Outputs*s.LdW), before: make([]float32, s.Rows*s.LdOut)}
	for i := range p.a {
		p.a[i] = toBF16(r.Float32()*2 - 1)
	}
	for i := range p.w {
		p.w[i] = toBF16(r.Float32()*2 - 1)
	}
	for i := range p.before {
		p.before[i] = r.Float32()*2 - 1
	}
	return p
}

// compare holds results against sums in float64. A sum of k float32 products errs by at
// most k rounding errors of the sum of magnitudes, twice that where a device truncates.
func (p product) compare(t *testing.T, at func(i int) float64) {
	t.Helper()
	s := p.shape
	for row := range s.Rows {
		for o := range s.LdOut {
			i := row*s.LdOut + o
			got := at(i)
			if o >= s.Outputs {
				if !s.Narrow && got != float64(p.before[i]) {
					t.Fatalf("%+v: wrote %v past row %d", s, got, row)
				}
				continue
			}
			var want, size float64
			for k := range s.K {
				x := fromBF16(p.a[row*s.LdA+k]) * fromBF16(p.w[o*s.LdW+k])
				want, size = want+x, size+math.Abs(x)
			}
			if s.Add {
				want += float64(p.before[i])
				size += math.Abs(float64(p.before[i]))
			}
			limit := float64(s.K) * size * 0x1p-23
			if s.Narrow {
				limit += math.Abs(want) * 0x1p-8
			}
			if !(math.Abs(got-want) <= limit) {
				t.Fatalf("%+v: row %d, output %d is %v, want %v within %v", s, row, o, got, want, limit)
			}
		}
	}
}

func TestProducts(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(1, 2))
	program := b.device.NewProgram()
	defer program.Free()
	for n := range 12 {
		p := randomProduct(r, n%3 == 0, n%3 == 1)
		s := p.shape
		plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(s, workspaceBytes))
		a, w := upload(b, p.a), upload(b, p.w)
		out := upload(b, p.before) // large enough for bf16 too
		program.Reset()
		plan.Multiply(program, a, w, out, b.workspace)
		if err := b.stream.Run(program); err != nil {
			t.Fatal(err)
		}
		if s.Narrow {
			got := download[uint16](b, out, s.Rows*s.LdOut)
			p.compare(t, func(i int) float64 { return fromBF16(got[i]) })
		} else {
			got := download[float32](b, out, s.Rows*s.LdOut)
			p.compare(t, func(i int) float64 { return float64(got[i]) })
		}
	}
}

// TestGraph: a product in a graph runs at each launch, with what its matrices hold then.
func TestGraph(t *testing.T) {
	b := newBench(t)
	p := randomProduct(rand.New(rand.NewPCG(3, 4)), false, false)
	plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(p.shape, workspaceBytes))
	a, w, out := upload(b, make([]uint16, len(p.a))), upload(b, p.w), upload(b, p.before)
	program := b.device.NewProgram()
	defer program.Free()
	plan.Multiply(program, a, w, out, b.workspace)
	if err := b.stream.Run(program); err != nil { // the library loads its kernels
		t.Fatal(err)
	}
	graph := must(b, (*driver.Graph).Close)(b.stream.Capture(program))
	from := upload(b, p.a)
	program.Reset()
	program.Copy(a, from, 2*len(p.a))
	program.Graph(graph)
	if err := b.stream.Run(program); err != nil {
		t.Fatal(err)
	}
	got := download[float32](b, out, len(p.before))
	p.compare(t, func(i int) float64 { return float64(got[i]) })
}

func TestRefusals(t *testing.T) {
	b := newEmulated(t)
	s := blaslt.Shape{Rows: 70, Outputs: 20, K: 64, LdA: 64, LdW: 64, LdOut: 64}
	a, w, out := b.memory(70*64*2), b.memory(20*64*2), b.memory(70*64*4)
	short := b.memory(20 * 64)
	plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(s, workspaceBytes))
	program := b.device.NewProgram()
	defer program.Free()
	for name, c := range map[string]struct {
		a, w, out, workspace driver.Address
		says                 string
	}{
		"odd activations":     {a + 2, w, out, b.workspace, "multiple of 256"},
		"too few weights":     {a, short, out, b.workspace, "one allocation"},
		"no workspace":        {a, w, out, 0, "one allocation"},
		"a shorter workspace": {a, w, out, b.workspace + 256, "one allocation"},
		"one for both":        {a, w, b.workspace, b.workspace, "overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			program.Reset()
			plan.Multiply(program, c.a, c.w, c.out, c.workspace)
			err := b.stream.Run(program)
			says(t, err, "operation 0, product of 70 rows and 20 outputs", "cublasLtMatmul", "CUBLAS_STATUS_INVALID_VALUE (7)", c.says)
			var failed *blaslt.Error
			if !errors.As(err, &failed) || failed.Call != "cublasLtMatmul" || failed.Code != 7 {
				t.Errorf("the error is %#v", failed)
			}
		})
	}
	_, err := b.handle.Plan(s, 1000)
	says(t, err, "70 rows, 20 outputs and 64 elements", "cublasLtMatmulAlgoGetHeuristic", "CUBLAS_STATUS_NOT_SUPPORTED (15)", "too small")
	s.LdA = 63
	_, err = b.handle.Plan(s, workspaceBytes)
	says(t, err, "cublasLtMatrixLayoutCreate", "overlap")
}

// TestFailsOnce: a product that fails says so, and the next one is computed.
func TestFailsOnce(t *testing.T) {
	b := newEmulated(t)
	s := blaslt.Shape{Rows: 8, Outputs: 8, K: 64, LdA: 64, LdW: 64, LdOut: 64}
	plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(s, workspaceBytes))
	a, w, out := upload(b, make([]uint16, 8*64)), upload(b, make([]uint16, 8*64)), b.memory(8*64*4)
	program := b.device.NewProgram()
	defer program.Free()
	plan.Multiply(program, a, w, out, b.workspace)
	b.control.Fail("cublasLtMatmul", 0, 14)
	says(t, b.stream.Run(program), "cublasLtMatmul", "CUBLAS_STATUS_INTERNAL_ERROR (14)")
	if err := b.stream.Run(program); err != nil { // the failure was one call's
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	b := newBench(t)
	s := blaslt.Shape{Rows: 8, Outputs: 8, K: 64, LdA: 64, LdW: 64, LdOut: 64}
	plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(s, workspaceBytes))
	program := b.device.NewProgram()
	defer program.Free()
	plan.Multiply(program, b.workspace, b.workspace, b.workspace, b.workspace)
	for range 2 {
		if err := plan.Close(); err != nil {
			t.Fatal(err)
		}
	}
	says(t, b.stream.Run(program), "operation 0", "plan of a product", "closed")
	for range 2 {
		if err := b.handle.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.handle.Plan(s, workspaceBytes)
	says(t, err, "closed")
}

// TestNothingLeaks: whichever call fails, what was made before is gone, and the error
// names the call.
func TestNothingLeaks(t *testing.T) {
	b := newEmulated(t)
	s := blaslt.Shape{Rows: 8, Outputs: 8, K: 64, LdA: 64, LdW: 64, LdOut: 64, Narrow: true}
	before := b.control.Live()
	for call, times := range map[string]int{
		"cublasLtMatmulDescCreate": 1, "cublasLtMatmulDescSetAttribute": 2, "cublasLtMatrixLayoutCreate": 3, "cublasLtMatmulPreferenceCreate": 1,
		"cublasLtMatmulPreferenceSetAttribute": 2, "cublasLtMatmulAlgoGetHeuristic": 1,
	} {
		for after := range times {
			b.control.Fail(call, after, 3)
			_, err := b.handle.Plan(s, workspaceBytes)
			says(t, err, call, "CUBLAS_STATUS_ALLOC_FAILED (3)")
			if live := b.control.Live(); live != before {
				t.Fatalf("%s fails after %d: %+v, before %+v", call, after, live, before)
			}
		}
	}
	plan := must(b, (*blaslt.Plan).Close)(b.handle.Plan(s, workspaceBytes))
	if live := b.control.Live(); live.Products != before.Products+4 {
		t.Errorf("a plan is %d things", live.Products-before.Products)
	}
	if err := plan.Close(); err != nil {
		t.Error(err)
	}
}
