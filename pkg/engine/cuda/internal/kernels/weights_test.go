package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// valueOf is the value of a code of 8 bits. NaN of e4m3 is 480, as in the kernels.
func valueOf(weights kernels.Weights, code byte) float64 {
	if weights == kernels.Int8 {
		return float64(int8(code))
	}
	exponent, fraction := int(code>>3&15), float64(code&7)
	size := math.Ldexp(8+fraction, exponent-10)
	if exponent == 0 {
		size = math.Ldexp(fraction, -9)
	}
	if code&0x80 != 0 {
		return -size
	}
	return size
}

// byteK is which k of its block of 64 a byte of weights is: lane t of four has eight k from
// 8t on and eight from 32 + 8t on, and of four k the middle ones change places.
func byteK(n int) int {
	t, half, four := n/16, n/8%2, n/4%2
	return 32*half + 8*t + 4*four + [4]int{0, 2, 1, 3}[n%4]
}

// nearest is the code of a number.
func nearest(weights kernels.Weights, x float32) byte {
	if weights == kernels.Int8 {
		return byte(int8(math.RoundToEven(float64(x))))
	}
	size, best := math.Abs(float64(x)), byte(0)
	for code := byte(1); code < 0x7f; code++ {
		off, least := math.Abs(size-valueOf(weights, code)), math.Abs(size-valueOf(weights, best))
		if off < least || off == least && code%2 == 0 {
			best = code
		}
	}
	if math.Signbit(float64(x)) {
		best |= 0x80
	}
	return best
}

// quantized is the definition of tdm_quantize_args, for a row of whole blocks.
func quantized(weights kernels.Weights, row []uint16) (codes []byte, scale float32) {
	largest := uint16(0) // NaN is above infinity
	for _, h := range row {
		largest = max(largest, h&0x7fff)
	}
	most := map[kernels.Weights]float32{kernels.Int8: 127, kernels.FP8: 448}[weights]
	scale = float32(wide(largest)) / most
	codes = make([]byte, len(row))
	if largest == 0 || largest >= 0x7f80 {
		return codes, scale
	}
	for i := range codes {
		codes[i] = nearest(weights, float32(wide(row[i/kernels.KBlock*kernels.KBlock+byteK(i%kernels.KBlock)]))/scale)
	}
	return codes, scale
}

// TestQuantize: codes and scales are those of the definition, of rows of all kinds of
// numbers.
func TestQuantize(t *testing.T) {
	b := newBench(t)
	kinds := []func() float64{
		func() float64 { return 2*b.random.Float64() - 1 },
		func() float64 { return math.Ldexp(2*b.random.Float64()-1, b.random.IntN(40)-30) },
		func() float64 { return math.Ldexp(float64(b.between(-127, 127)), -133) }, // denormals
		func() float64 { return float64(b.between(-254, 254)) / 2 },               // ties, where the largest is 127
		func() float64 { return math.Ldexp(b.random.NormFloat64(), 120) },
		func() float64 { return 0 },
		func() float64 { return math.Inf(b.random.IntN(400) - 1) },
		func() float64 { return 1 },
	}
	for _, weights := range []kernels.Weights{kernels.Int8, kernels.FP8} {
		for range 4 {
			k, rows := b.between(1, 2500), 2*len(kinds)
			ld := padded(k, kernels.KBlock)
			from := make([]uint16, rows*ld)
			for row := range rows {
				for i := range k {
					from[row*ld+i] = narrow(float32(kinds[row%len(kinds)]()))
				}
			}
			from[b.random.IntN(k)] = narrow(1.75) // 448 times a power of two: ties
			from[3*ld+b.random.IntN(k)] = narrow(127)
			from[7*ld+b.random.IntN(k)] = 0x7fc0 // NaN
			to, scales := put(b, make([]byte, rows*ld)), put(b, make([]float32, rows))
			atFrom := put(b, from)
			b.run(func(p *driver.Program) {
				b.set.Quantize(p, weights, rows, kernels.QuantizeArgs{From: atFrom, To: to, Scales: scales, Ld: int64(ld)})
			})
			gotCodes, gotScales := get[byte](b, to, rows*ld), get[float32](b, scales, rows)
			for row := range rows {
				codes, scale := quantized(weights, from[row*ld:(row+1)*ld])
				if got := gotScales[row]; got != scale && !(got != got && scale != scale) {
					t.Errorf("%s: the scale of row %d is %v, want %v", weights, row, got, scale)
				}
				if got := gotCodes[row*ld : (row+1)*ld]; !slices.Equal(got, codes) {
					t.Errorf("%s: row %d of %d has other codes", weights, row, k)
				}
			}
		}
	}
}

// TestCodes: every code is multiplied as its value, wherever it is in a block.
func TestCodes(t *testing.T) {
	b := newBench(t)
	const outputs = 256
	ones := make([]uint16, kernels.KBlock*kernels.KBlock) // rows that pick one k each
	for k := range kernels.KBlock {
		ones[k*kernels.KBlock+k] = narrow(1)
	}
	codes := make([]byte, outputs*kernels.KBlock)
	for i := range codes {
		codes[i] = byte(i/kernels.KBlock + i%kernels.KBlock)
	}
	scales := make([]float32, outputs)
	for i := range scales {
		scales[i] = 1
	}
	atOnes, atCodes, atScales := put(b, ones), put(b, codes), put(b, scales)
	for _, weights := range []kernels.Weights{kernels.Int8, kernels.FP8} {
		for _, rows := range []int{8, 64} { // thin and tiled
			t.Run(fmt.Sprintf("%s/%d rows", weights, rows), func(t *testing.T) {
				for first := 0; first < kernels.KBlock; first += rows {
					out, count := put(b, make([]float32, rows*outputs)), put(b, []int32{int32(rows)})
					b.run(func(p *driver.Program) {
						b.set.Product(p, weights, kernels.Store, rows, kernels.ProductArgs{
							Count: count, A: atOnes + kernels.Address(2*first*kernels.KBlock), W: atCodes, Scales: atScales, Out: out,
							LdA: kernels.KBlock, LdW: kernels.KBlock, LdOut: outputs, K: kernels.KBlock, Outputs: outputs,
						})
					})
					got := get[float32](b, out, rows*outputs)
					for o := range outputs {
						for n := range kernels.KBlock {
							k := byteK(n)
							if k < first || k >= first+rows {
								continue
							}
							code := codes[o*kernels.KBlock+n]
							if x := float64(got[(k-first)*outputs+o]); x != valueOf(weights, code) {
								t.Fatalf("code %02x at k %d is %v, want %v", code, k, x, valueOf(weights, code))
							}
						}
					}
				}
			})
		}
	}
}
