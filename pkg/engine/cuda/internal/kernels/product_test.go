package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// Each row of a product has the same bits whichever kernel computes it, and is the sum
// within what additions in float32 may err.
func TestProducts(t *testing.T) {
	b := newBench(t)
	type shape struct{ k, outputs, rows int }
	for _, epilogue := range []kernels.Epilogue{kernels.Store, kernels.Add, kernels.SwiGLU} {
		shapes := []shape{{b.between(1, 150), 12300 / (1 + int(epilogue)/2), 130}} // enough tiles not to be sliced
		for range 2 {
			shapes = append(shapes, shape{b.between(1, 1500), b.between(1, 200), b.between(70, 140)})
		}
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%d/k %d, outputs %d, rows %d", epilogue, s.k, s.outputs, s.rows), func(t *testing.T) {
				p := newProduct(b, epilogue, s.k, s.outputs, s.rows)
				want := p.inPieces(8)
				p.compare(t, want)
				for _, most := range []int{16, 32, 64, s.rows, 2 * s.rows} {
					if got := p.inPieces(most); !slices.Equal(got, want) {
						t.Errorf("the kernel of %d rows differs from that of 8", most)
					}
				}
				p.atParts = 0 // tiled, however few tiles
				for _, most := range []int{64, s.rows} {
					if got := p.inPieces(most); !slices.Equal(got, want) {
						t.Errorf("the kernel of %d rows without parts differs from that of 8", most)
					}
				}
			})
		}
	}
}

type product struct {
	*bench
	epilogue         kernels.Epilogue
	k, outputs, rows int
	ld, ldOut        int
	a, w, up         []uint16
	before           []float32
	atA, atW, atUp   kernels.Address
	atParts          kernels.Address
}

func newProduct(b *bench, epilogue kernels.Epilogue, k, outputs, rows int) *product {
	p := &product{bench: b, epilogue: epilogue, k: k, outputs: outputs, rows: rows, ld: padded(k, kernels.KBlock), ldOut: padded(outputs, kernels.Tile)}
	p.a = b.matrix(padded(rows, kernels.Tile), k, p.ld)
	p.w, p.up = b.matrix(p.ldOut, k, p.ld), b.matrix(p.ldOut, k, p.ld)
	p.before = b.floats(rows * p.ldOut)
	p.atA, p.atW, p.atUp = put(b, p.a), put(b, p.w), put(b, p.up)
	parts := kernels.PartsBytes(epilogue, outputs, 2*rows)
	p.atParts = put(b, make([]byte, max(parts, 16)))
	return p
}

// inPieces computes the product `most` rows at a time, and returns the bits of outputs.
func (p *product) inPieces(most int) []uint32 {
	var bits []uint32
	for first := 0; first < p.rows; first += most {
		n := min(most, p.rows-first)
		out := put(p.bench, p.before[first*p.ldOut:(first+n)*p.ldOut])
		count := put(p.bench, []int32{int32(n)})
		p.run(func(program *driver.Program) {
			p.set.Product(program, p.epilogue, most, kernels.ProductArgs{
				Count: count, A: p.atA + kernels.Address(2*first*p.ld), W: p.atW, Up: p.atUp, Out: out, Parts: p.atParts,
				LdA: int64(p.ld), LdW: int64(p.ld), LdOut: int64(p.ldOut), K: int32(p.ld), Outputs: int32(p.outputs),
			})
		})
		if p.epilogue == kernels.SwiGLU {
			for i, h := range get[uint16](p.bench, out, n*p.ldOut) {
				if i%p.ldOut < p.outputs {
					bits = append(bits, uint32(h))
				}
			}
			continue
		}
		for i, x := range get[uint32](p.bench, out, n*p.ldOut) {
			if i%p.ldOut < p.outputs {
				bits = append(bits, x)
			} else if x != math.Float32bits(p.before[first*p.ldOut+i]) {
				p.t.Fatalf("output %d of %d was written", i%p.ldOut, p.outputs)
			}
		}
	}
	return bits
}

// compare holds bits against sums in float64. A chain of k additions errs by at most k
// roundings of the sum of magnitudes, and twice that if the GPU truncates.
func (p *product) compare(t *testing.T, bits []uint32) {
	t.Helper()
	slack := float64(p.k) * 0x1p-23
	for i, u := range bits {
		row, output := i/p.outputs, i%p.outputs
		a := p.a[row*p.ld : row*p.ld+p.k]
		sum, size := dot(a, p.w[output*p.ld:])
		if p.epilogue == kernels.SwiGLU {
			up, upSize := dot(a, p.up[output*p.ld:])
			gate := sum / (1 + math.Exp(-sum))
			near(t, "swiglu", wide(uint16(u)), gate*up, slack*(1.1*size*math.Abs(up)+upSize*math.Abs(gate))+math.Abs(gate*up)*0x1p-8+1e-30)
			continue
		}
		want := sum
		if p.epilogue == kernels.Add {
			want += float64(p.before[row*p.ldOut+output])
		}
		near(t, "product", float64(math.Float32frombits(u)), want, slack*size+math.Abs(want)*0x1p-23)
	}
}

// dot is a sum of products, and the sum of their magnitudes.
func dot(a, w []uint16) (sum, size float64) {
	for i := range a {
		x := wide(a[i]) * wide(w[i])
		sum += x
		size += math.Abs(x)
	}
	return sum, size
}
