// Package finite looks for infinities and NaNs in many numbers, eight bytes at a time.
//
// Only engines import it. It starts no goroutines.
package finite

import "encoding/binary"

// exponent is that of a bf16 that is infinite or NaN.
const exponent = 0x7f80

// BF16 says whether all of many bf16 are finite.
func BF16(numbers []byte) bool {
	const exponents, ones, tops = 0x7f807f807f807f80, 0x0001000100010001, 0x8000800080008000
	for ; len(numbers) >= 8; numbers = numbers[8:] {
		// Of an exponent of ones nothing is left, and 1 less than that has the top bit.
		if left := ^binary.LittleEndian.Uint64(numbers) & exponents; (left-ones)&tops != 0 {
			return false
		}
	}
	for ; len(numbers) > 0; numbers = numbers[2:] {
		if !OneBF16(numbers) {
			return false
		}
	}
	return true
}

// OneBF16 says whether the first of many bf16 is finite.
func OneBF16(numbers []byte) bool {
	return binary.LittleEndian.Uint16(numbers)&exponent != exponent
}

// FP8 says whether all of many numbers in fp8, e4m3, are finite. There is no infinity in it.
func FP8(numbers []byte) bool {
	const unsigned, ones, tops = 0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080
	for ; len(numbers) >= 8; numbers = numbers[8:] {
		// Of a NaN, which has ones alone, nothing is left: see BF16.
		if left := ^binary.LittleEndian.Uint64(numbers) & unsigned; (left-ones)&tops != 0 {
			return false
		}
	}
	for _, number := range numbers {
		if !OneFP8(number) {
			return false
		}
	}
	return true
}

// OneFP8 says whether a number in fp8, e4m3, is finite.
func OneFP8(number byte) bool { return number&0x7f != 0x7f }
