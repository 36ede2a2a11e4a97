package int8kv_test

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// The definition, element by element, without optimizations.

func widen(bf16 uint16) float32 { return math.Float32frombits(uint32(bf16) << 16) }

func finite(x float32) bool { return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0) }

// product is a·b rounded once to single precision.
func product(a, b float32) float32 {
	p, _ := new(big.Float).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b))).Float32()
	return p
}

// narrow rounds a finite number to the nearest bf16, half to even.
func narrow(x float32) uint16 {
	below := uint16(math.Float32bits(x) >> 16)
	low, high := float64(widen(below)), float64(widen(below+1))
	if toLow, toHigh := math.Abs(float64(x)-low), math.Abs(high-float64(x)); toHigh < toLow || toHigh == toLow && below&1 == 1 {
		return below + 1
	}
	return below
}

func referenceEncode(l kvcache.Layout, src []byte) []byte {
	elements := l.HeadSize * l.BlockTokens
	var scales, codes []byte
	for h := range 2 * l.KVHeads {
		head := make([]float32, elements)
		largest := float32(0)
		for i := range head {
			head[i] = widen(binary.LittleEndian.Uint16(src[2*(h*elements+i):]))
			if finite(head[i]) {
				largest = max(largest, float32(math.Abs(float64(head[i]))))
			}
		}
		scale, inverse := largest/127, 127/largest
		if largest < 0x1p-100 {
			scale, inverse = 0, 0
		}
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(scale))
		for _, x := range head {
			code := 0.0
			switch {
			case inverse == 0 || x != x:
			case finite(x):
				code = math.RoundToEven(float64(product(x, inverse)))
			default:
				code = math.Copysign(127, float64(x))
			}
			codes = append(codes, byte(int8(code)))
		}
	}
	return append(scales, codes...)
}

// referenceDecode requires valid scales.
func referenceDecode(l kvcache.Layout, src []byte) []byte {
	elements := l.HeadSize * l.BlockTokens
	var out []byte
	for h := range 2 * l.KVHeads {
		scale := math.Float32frombits(binary.LittleEndian.Uint32(src[4*h:]))
		for i := range elements {
			code := max(int8(src[8*l.KVHeads+h*elements+i]), -127)
			element := uint16(0)
			if code != 0 && scale != 0 {
				element = narrow(product(float32(code), scale))
			} else if code < 0 {
				element = 0x8000
			}
			out = binary.LittleEndian.AppendUint16(out, element)
		}
	}
	return out
}
