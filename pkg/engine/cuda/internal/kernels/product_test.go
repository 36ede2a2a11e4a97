package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// TestProducts compares products of random shapes, with every epilogue and by every
// kernel, with sums in float64, and each row with the same row computed alone.
func TestProducts(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(5, 6))
	for round := range r.times(18) {
		then := kernels.Epilogue(round % 3)
		rows := []int{1 + random.IntN(8), 1 + random.IntN(64), 1 + random.IntN(200)}[round/3%3]
		k := kernels.KBlock * (1 + random.IntN(12))
		outputs := 1 + random.IntN(300)
		checkProduct(r, random, then, rows, outputs, k)
	}
	if r.gpu { // sizes of a model of 8 billion parameters
		for _, rows := range []int{1, 16, 64, 300} {
			checkProduct(r, random, kernels.Store, rows, 6144, 4096)
			checkProduct(r, random, kernels.Add, rows, 4096, 14336)
			checkProduct(r, random, kernels.SwiGLU, rows, 14336, 4096)
		}
	}
}

func checkProduct(r *rig, random *rand.Rand, then kernels.Epilogue, rows, outputs, k int) {
	t := r.t
	t.Helper()
	tiled, lines := padded(rows, kernels.Tile), padded(outputs, kernels.Tile)
	a, w, gate := bf16s(random, tiled*k, 1), bf16s(random, lines*k, 0.1), bf16s(random, lines*k, 0.1)
	before := make([]float32, rows*outputs)
	for i := range before {
		before[i] = float32(random.NormFloat64())
	}
	out := up(r, before)
	most := rows + random.IntN(5) // the kernel may be one for more rows than there are
	args := kernels.ProductArgs{
		Count: up(r, []int32{int32(rows)}), A: up(r, a), W: up(r, w), Up: up(r, gate), Out: out,
		LdA: int64(k), LdW: int64(k), LdOut: int64(outputs), K: int32(k), Outputs: int32(outputs),
	}
	r.set.Product(r.program, then, most, args)
	r.run()
	alone := args
	last := rows - 1
	alone.Count, alone.A, alone.Out = up(r, []int32{1}), args.A+kernels.Address(2*last*k), up(r, before[last*outputs:])
	r.set.Product(r.program, then, 1, alone)
	r.run()
	got, single := values(r, then, out, rows*outputs), values(r, then, alone.Out, outputs)
	step := max(1, rows*outputs*k/2_000_000) // of large ones only some
	for i := 0; i < rows*outputs; i += step {
		row, o := i/outputs, i%outputs
		sum, size := dot(a[row*k:], w[o*k:], k)
		want, slack := sum, size*0x1p-18
		switch then {
		case kernels.Add:
			want += float64(before[i])
			slack += math.Abs(want) * 0x1p-23
		case kernels.SwiGLU:
			other, otherSize := dot(a[row*k:], gate[o*k:], k)
			want = sum / (1 + math.Exp(-sum)) * other
			slack = math.Abs(want)*0x1p-8 + (size*math.Abs(other)+otherSize*math.Abs(sum))*0x1p-16
		}
		if !(math.Abs(got[i]-want) <= slack+1e-30) {
			t.Fatalf("epilogue %d, %d rows, %d outputs, k %d: output %d of row %d is %v, want %v within %v", then, rows, outputs, k, o, row, got[i], want, slack)
		}
	}
	for o := range outputs {
		if single[o] != got[last*outputs+o] {
			t.Fatalf("epilogue %d, %d rows, %d outputs, k %d: output %d of the last row is %v, alone %v", then, rows, outputs, k, o, got[last*outputs+o], single[o])
		}
	}
}

// values are a product's results: float32, or bf16 of SwiGLU.
func values(r *rig, then kernels.Epilogue, at kernels.Address, n int) []float64 {
	numbers := make([]float64, n)
	if then == kernels.SwiGLU {
		for i, v := range down[uint16](r, at, n) {
			numbers[i] = wide(v)
		}
		return numbers
	}
	for i, v := range down[float32](r, at, n) {
		numbers[i] = float64(v)
	}
	return numbers
}

// dot is a sum of products, and the sum of their sizes.
func dot(a, w []uint16, k int) (sum, size float64) {
	for i := range k {
		x := wide(a[i]) * wide(w[i])
		sum += x
		size += math.Abs(x)
	}
	return sum, size
}
