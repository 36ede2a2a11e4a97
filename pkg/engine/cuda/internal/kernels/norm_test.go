package kernels_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// norm is device memory for what a norm of rows leaves to products, with random sums of
// squares in it.
type norm struct {
	*bench
	kernels.Deferred
	weight, squares []float32
	sums            int // of a row
}

func newNorm(b *bench, rows, width int) *norm {
	n := &norm{bench: b, weight: b.floats(width), sums: up(width, kernels.SquaresOf)}
	ld, lds := padded(width, kernels.KBlock), padded(n.sums, 4)
	n.squares = make([]float32, rows*lds)
	for i := range n.squares {
		if i%lds < n.sums {
			n.squares[i] = float32(16 * b.random.Float64())
		}
	}
	n.Deferred = kernels.Deferred{
		Weight: put(b, n.weight), Scaled: put(b, make([]uint16, rows*ld)), Squares: put(b, n.squares), Roots: put(b, make([]float32, rows)),
		LdScaled: int64(ld), LdSquares: int64(lds), Width: int32(width), Eps: 1e-5,
	}
	return n
}

// from is the norm of the rows from one on.
func (n *norm) from(row int) kernels.Deferred {
	d := n.Deferred
	d.Scaled += kernels.Address(2 * row * int(d.LdScaled))
	d.Squares += kernels.Address(4 * row * int(d.LdSquares))
	d.Roots += kernels.Address(4 * row)
	return d
}

// root is a row's, in float64.
func (n *norm) root(row int) float64 {
	sum := 0.0
	for _, s := range n.squares[row*int(n.LdSquares):][:n.sums] {
		sum += float64(s)
	}
	return 1 / math.Sqrt(sum/float64(n.Width)+float64(n.Eps))
}

// compareRows holds what rows of x, which are the norm's from first on, left against the
// definition, for equal bits.
func (n *norm) compareRows(t *testing.T, x []float32, ldX, first, rows int) {
	t.Helper()
	ld, lds, width := int(n.LdScaled), int(n.LdSquares), int(n.Width)
	d := n.from(first)
	scaled, squares := get[uint16](n.bench, d.Scaled, rows*ld), get[float32](n.bench, d.Squares, rows*lds)
	for row := range rows {
		of := x[row*ldX:][:width]
		for i, got := range scaled[row*ld:][:ld] {
			want := uint16(0)
			if i < width {
				want = narrow(of[i] * n.weight[i])
			}
			if got != want {
				t.Fatalf("row %d: element %d of %d scaled is %#x, want %#x", first+row, i, width, got, want)
			}
		}
		for i, got := range squares[row*lds:][:lds] {
			want := float32(0)
			if i < n.sums {
				want = squareSum(of, kernels.SquaresOf*i)
			}
			if got != want {
				t.Fatalf("row %d: squares %d of %d are %v, want %v", first+row, i, n.sums, got, want)
			}
		}
	}
}

// squareSum is the sum of the squares of the elements of a row from one on: those 8 apart
// first, then 4, 2, 1.
func squareSum(row []float32, from int) float32 {
	var sum [kernels.SquaresOf]float32
	for i := from; i < min(from+len(sum), len(row)); i++ {
		sum[i-from] = row[i] * row[i]
	}
	for apart := len(sum) / 2; apart > 0; apart /= 2 {
		for i := range apart {
			sum[i] += sum[i+apart]
		}
	}
	return sum[0]
}

// The product of queries, keys and values that puts them where they belong has the bits of
// the two kernels that it stands for, whatever the number of rows.
func TestProductHeads(t *testing.T) {
	b := newBench(t)
	const heads, size, positions, k, rows = 6, 48, 40, 320, 16
	const all, half, slice = heads + 2*kvHeads, size / 2, 2 * kvHeads * blockTokens * size
	ld, ldQ := padded(all*size, kernels.KBlock), padded(heads*size, kernels.KBlock)
	n := newNorm(b, rows, k)
	position, slots := make([]int32, rows), make([]int32, rows)
	for i := range rows {
		position[i], slots[i] = int32(b.random.IntN(positions)), int32(i*blockTokens+b.random.IntN(blockTokens))
	}
	product := kernels.ProductArgs{
		A: put(b, b.matrix(rows, k, k)), W: put(b, b.matrix(padded(all*size, kernels.Tile), k, k)), Out: put(b, make([]float32, rows*ld)),
		LdA: k, LdW: k, LdOut: int64(ld), K: k, Outputs: all * size, Norm: n.Deferred,
	}
	args := kernels.HeadsArgs{
		QKV: product.Out, Bias: put(b, b.floats(all*size)), Cos: put(b, b.floats(positions*half)), Sin: put(b, b.floats(positions*half)),
		Positions: put(b, position), Slots: put(b, slots), Ld: int64(ld), LdQ: int64(ldQ), PageBytes: 4 * slice, LayerBytes: 2 * slice,
		Heads: heads, KVHeads: kvHeads, Size: size, BlockTokens: blockTokens, Eps: 1e-6, Stride: size,
	}
	for _, count := range []int{1, 8, 13, rows} {
		if !kernels.FusesHeads(size, count) {
			t.Fatalf("no kernel for %d rows", count)
		}
		counts := put(b, []kernels.Counts{{Rows: int32(count)}})
		product, args := product, args
		product.Count, args.Counts = counts, counts
		var want [2][]uint16
		for fused := range 2 {
			args.Q, args.Pages = put(b, make([]uint16, rows*ldQ)), put(b, make([]uint16, 2*slice*rows))
			b.run(func(p *driver.Program) {
				if fused == 0 {
					b.set.Product(p, kernels.BF16, kernels.Store, count, product)
					b.set.Heads(p, count, args)
					return
				}
				product.Outputs /= 2
				b.set.ProductHeads(p, kernels.BF16, count, kernels.ProductHeadsArgs{Product: product, Heads: args})
			})
			q, pages := get[uint16](b, args.Q, rows*ldQ), get[uint16](b, args.Pages, 2*slice*rows)
			if fused == 0 {
				want = [2][]uint16{q, pages}
				if slices.Max(q) == 0 || slices.Max(pages) == 0 {
					t.Fatal("nothing was written")
				}
			} else if !slices.Equal(q, want[0]) || !slices.Equal(pages, want[1]) {
				t.Errorf("%d rows: one kernel and two differ", count)
			}
		}
	}
	if kernels.FusesHeads(size, rows+1) || kernels.FusesHeads(size+8, 1) {
		t.Error("a kernel is named that there is not")
	}
}
