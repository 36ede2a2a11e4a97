package model

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// exponents are the bits of the exponents of eight bytes of elements, which are all set in
// what is infinite or NaN, and the lowest bit of each element.
func (d DType) exponents() (exponents, ones uint64) {
	switch d {
	case BF16:
		return 0x7f807f807f807f80, 0x0001000100010001
	case F16:
		return 0x7c007c007c007c00, 0x0001000100010001
	}
	return 0x7f8000007f800000, 0x0000000100000001
}

// firstNotFinite is the index of the first element of data that is infinite or NaN; -1 if
// none is.
func (d DType) firstNotFinite(data []byte) int {
	exponents, ones := d.exponents()
	tops := ones << (8*d.Bytes() - 1)
	// Of an exponent of ones nothing is left, and 1 less than that has the top bit.
	is := func(eight uint64) bool { return (^eight&exponents-ones)&tops != 0 }
	i := 0
	for ; i+32 <= len(data); i += 32 {
		four := data[i : i+32]
		a, b := binary.LittleEndian.Uint64(four), binary.LittleEndian.Uint64(four[8:])
		c, d := binary.LittleEndian.Uint64(four[16:]), binary.LittleEndian.Uint64(four[24:])
		if ((^a&exponents-ones)|(^b&exponents-ones)|(^c&exponents-ones)|(^d&exponents-ones))&tops != 0 {
			break
		}
	}
	for size := d.Bytes(); i+size <= len(data); i += size {
		var eight [8]byte
		copy(eight[:], data[i:i+size])
		if is(binary.LittleEndian.Uint64(eight[:])) {
			return i / size
		}
	}
	return -1
}

// NotFinite is the indices of the elements of data that are infinite or NaN, rising. It reads what is
// finite at the speed of memory.
func (d DType) NotFinite(data []byte) iter.Seq[int] {
	return func(yield func(int) bool) {
		for next := 0; ; next++ {
			ahead := d.firstNotFinite(data[next*d.Bytes():])
			if next += ahead; ahead < 0 || !yield(next) {
				return
			}
		}
	}
}

// notFiniteError says which element of a tensor cannot be computed with.
func notFiniteError(t Tensor, element int) error {
	return fmt.Errorf("%s: element %d of tensor %s is infinite or NaN and would spoil the results: fetch or convert the file again", t.File, element, t.Name)
}
