package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// DType is the type of a weight's elements.
type DType int

// The element types that weights may have.
const (
	BF16 DType = iota + 1 // 8 bits of exponent, 7 of fraction
	F16                   // IEEE 754 binary16
	F32                   // IEEE 754 binary32
)

// String is "bf16", "f16" or "f32".
func (d DType) String() string {
	switch d {
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	case F32:
		return "f32"
	}
	return "dtype " + strconv.Itoa(int(d))
}

// Bytes is the size of one element.
func (d DType) Bytes() int {
	if d == F32 {
		return 4
	}
	return 2
}

// Tensor is one weight as it lies in its file.
type Tensor struct {
	// Name is as in the file, such as "model.norm.weight".
	Name string
	// File is the path of the safetensors file.
	File string
	// DType is the type of the elements.
	DType DType
	// Shape has one dimension for norms and two for matrices: output rows by
	// input columns, rows contiguous.
	Shape []int
	// Data is the elements, little-endian, mapped from the file and read-only:
	// writing to it faults. It is valid until Model.Close. Its address is a
	// multiple of the element size in files by the usual writers, but the format
	// does not promise it.
	Data []byte
}

// Elements is the product of Shape.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// DataBytes is the size of the data of tensors.
func DataBytes(tensors ...Tensor) (bytes int64) {
	for _, t := range tensors {
		bytes += int64(len(t.Data))
	}
	return bytes
}

// Float32s converts len(dst) elements, from element first on. Every bf16, f16
// and f32 value is exact in float32. It is an error to reach past the end.
func (t Tensor) Float32s(dst []float32, first int) error {
	size := t.DType.Bytes()
	if first < 0 || first > len(t.Data)/size-len(dst) {
		return fmt.Errorf("tensor %s: elements %d to %d of %d", t.Name, first, first+len(dst), len(t.Data)/size)
	}
	src := t.Data[first*size:]
	switch t.DType {
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	default:
		return fmt.Errorf("tensor %s: element type %s is not known", t.Name, t.DType)
	}
	return nil
}

// fromF16 widens a binary16.
func fromF16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent, fraction := uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch exponent {
	case 0: // zero or subnormal: fraction * 2^-24
		f := float32(fraction) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
