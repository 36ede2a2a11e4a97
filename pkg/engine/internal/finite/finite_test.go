package finite_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/internal/finite"
)

// TestEachNumber: every number there is, at every place of a word and behind one, among all
// that are finite.
func TestEachNumber(t *testing.T) {
	const n = 15
	for code := range 1 << 16 {
		number := binary.LittleEndian.AppendUint16(nil, uint16(code))
		value := float64(math.Float32frombits(uint32(code) << 16))
		want := !math.IsNaN(value) && !math.IsInf(value, 0)
		if got := finite.OneBF16(number); got != want {
			t.Fatalf("bf16 %#x: finite %v", code, got)
		}
		for _, beside := range []uint16{0, 0x7f7f, 0xff7f, 0x8000} {
			for at := range n {
				var numbers []byte
				for i := range n {
					if i == at {
						numbers = append(numbers, number...)
					} else {
						numbers = binary.LittleEndian.AppendUint16(numbers, beside)
					}
				}
				if got := finite.BF16(numbers); got != want {
					t.Fatalf("bf16 %#x at %d among %#x: finite %v", code, at, beside, got)
				}
			}
		}
	}
	for code := range 1 << 8 {
		want := code != 0x7f && code != 0xff
		if got := finite.OneFP8(byte(code)); got != want {
			t.Fatalf("fp8 %#x: finite %v", code, got)
		}
		for _, beside := range []byte{0, 0x7e, 0xfe, 0x80} {
			for at := range n {
				numbers := slices.Repeat([]byte{beside}, n)
				numbers[at] = byte(code)
				if got := finite.FP8(numbers); got != want {
					t.Fatalf("fp8 %#x at %d among %#x: finite %v", code, at, beside, got)
				}
			}
		}
	}
}
