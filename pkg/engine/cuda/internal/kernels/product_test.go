package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// Each row of a product has the same bits whichever kernel computes it, and is the sum
// within what additions in float32 may err.
func TestProducts(t *testing.T) {
	b := newBench(t)
	type shape struct {
		weights          kernels.Weights
		k, outputs, rows int
	}
	for _, epilogue := range []kernels.Epilogue{kernels.Store, kernels.Add, kernels.SwiGLU} {
		if epilogue != kernels.SwiGLU && !longtest.Wanted() {
			continue
		}
		shapes := []shape{{kernels.BF16, b.between(1, 150), 12300 / (1 + int(epilogue)/2), 130}} // enough tiles not to be sliced
		for _, weights := range allWeights {
			shapes = append(shapes, shape{weights, b.between(1, 1500), b.between(1, 200), b.between(70, 140)})
		}
		for range 2 { // wide, where there is no room for parts
			shapes = append(shapes, shape{kernels.BF16, b.between(1, 1500), b.between(1, 200), b.between(130, 400)})
		}
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%d/%s, k %d, outputs %d, rows %d", epilogue, s.weights, s.k, s.outputs, s.rows), func(t *testing.T) {
				p := newProduct(b, s.weights, epilogue, s.k, s.outputs, s.rows)
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
	weights          kernels.Weights
	epilogue         kernels.Epilogue
	k, outputs, rows int
	ld, ldOut        int
	a                []uint16
	w, up            matrix
	before           []float32
	atA, atParts     kernels.Address
	atArranged       kernels.Address
	norm             *norm // nil: none
}

// matrix is weights on the device, and their values as bf16 and scales.
type matrix struct {
	values   []uint16
	scales   []float32
	at       kernels.Address
	atScales kernels.Address // 0: none
}

// newMatrix is one of random weights.
func newMatrix(b *bench, weights kernels.Weights, rows, k, ld int) matrix {
	m := matrix{values: b.matrix(rows, k, ld)}
	if weights == kernels.BF16 {
		m.at = put(b, m.values)
		return m
	}
	codes := make([]byte, rows*ld)
	for i := range codes {
		at := i/kernels.KBlock*kernels.KBlock + byteK(i%kernels.KBlock)
		if at%ld < k {
			codes[i] = byte(b.random.IntN(0x7f) | b.random.IntN(2)<<7)
		}
		m.values[at] = narrow(float32(valueOf(weights, codes[i])))
	}
	m.scales = b.floats(rows)
	m.at, m.atScales = put(b, codes), put(b, m.scales)
	return m
}

// dot is dot with a row of the matrix.
func (m matrix) dot(a []uint16, row, ld int) (sum, size float64) {
	sum, size = dot(a, m.values[row*ld:])
	if m.scales != nil {
		sum, size = sum*float64(m.scales[row]), size*math.Abs(float64(m.scales[row]))
	}
	return sum, size
}

func newProduct(b *bench, weights kernels.Weights, epilogue kernels.Epilogue, k, outputs, rows int) *product {
	p := &product{bench: b, weights: weights, epilogue: epilogue, k: k, outputs: outputs, rows: rows, ld: padded(k, kernels.KBlock), ldOut: padded(outputs, kernels.Tile)}
	p.a = b.matrix(padded(rows, kernels.Tile), k, p.ld)
	p.w, p.up = newMatrix(b, weights, p.ldOut, k, p.ld), newMatrix(b, weights, p.ldOut, k, p.ld)
	p.before = b.floats(rows * p.ldOut)
	p.atA = put(b, p.a)
	parts := kernels.PartsBytes(epilogue, outputs, 2*rows)
	p.atParts = put(b, make([]byte, max(parts, 16)))
	p.atArranged = put(b, make([]byte, max(kernels.ArrangedBytes(weights, 2*rows, k), 16)))
	if epilogue == kernels.Add {
		p.norm = newNorm(b, rows, outputs)
	} else if b.random.IntN(4) > 0 {
		p.norm = newNorm(b, rows, b.between(1, 3000))
	}
	return p
}

// inPieces computes the product `most` rows at a time, and returns the bits of outputs.
func (p *product) inPieces(most int) []uint32 {
	var bits []uint32
	for first := 0; first < p.rows; first += most {
		n := min(most, p.rows-first)
		out := put(p.bench, p.before[first*p.ldOut:(first+n)*p.ldOut])
		count := put(p.bench, []int32{int32(n)})
		args := kernels.ProductArgs{
			Count: count, A: p.atA + kernels.Address(2*first*p.ld), W: p.w.at, Up: p.up.at, Out: out, Parts: p.atParts, Arranged: p.atArranged,
			LdA: int64(p.ld), LdW: int64(p.ld), LdOut: int64(p.ldOut), K: int32(p.ld), Outputs: int32(p.outputs), Scales: p.w.atScales, UpScales: p.up.atScales,
		}
		if p.norm != nil {
			args.Norm = p.norm.from(first)
		}
		p.run(func(program *driver.Program) { p.set.Product(program, p.weights, p.epilogue, most, args) })
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
		if p.epilogue == kernels.Add {
			p.norm.compareRows(p.t, get[float32](p.bench, out, n*p.ldOut), p.ldOut, first, n)
		}
	}
	return bits
}

// compare holds bits against sums in float64. A chain of k additions errs by at most k
// roundings of the sum of magnitudes, and twice that if the GPU truncates.
func (p *product) compare(t *testing.T, bits []uint32) {
	t.Helper()
	slack := float64(p.k+1)*0x1p-23 + 0x1p-19 // the scale is one, and the root has a few roundings
	for i, u := range bits {
		row, output := i/p.outputs, i%p.outputs
		a := p.a[row*p.ld : row*p.ld+p.k]
		root := 1.0
		if p.norm != nil && p.epilogue != kernels.Add {
			root = p.norm.root(row)
		}
		sum, size := p.w.dot(a, output, p.ld)
		sum, size = root*sum, root*size
		if p.epilogue == kernels.SwiGLU {
			up, upSize := p.up.dot(a, output, p.ld)
			up, upSize = root*up, root*upSize
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
