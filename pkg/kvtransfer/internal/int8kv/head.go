package int8kv

import (
	"encoding/binary"
	"math"
)

const (
	// Bits of a bf16, and of all lanes of a word.
	sign       = 0x8000
	infinity   = 0x7f80
	magnitude  = 0x7fff
	signs      = 0x8000_8000_8000_8000
	ones       = 0x0001_0001_0001_0001
	magnitudes = signs - ones

	// least is the smallest magnitude maximum of a head with nonzero codes.
	least = 0x1p-100
	// Scales that a decoder accepts, besides 0.
	leastScale   float32 = 0x1p-126
	largestScale float32 = 0x1.fep127 / levels

	// integers, added to a float32, rounds it to the nearest integer, half to even, and
	// leaves that in the lowest bits.
	integers = 0x1.8p23
)

// validScale reports whether a decoder accepts the scale: not NaN, negative or denormal,
// and not so large that an element overflows.
func validScale(bits uint32) bool {
	return bits == 0 || bits >= math.Float32bits(leastScale) && bits <= math.Float32bits(largestScale)
}

// encodeHead writes the codes of a head's elements and returns their scale.
func encodeHead(codes, src []byte) float32 {
	largest, finite := largestMagnitude(src)
	if largest < least {
		clear(codes)
		return 0
	}
	inverse := levels / largest
	if !finite {
		encodeUnusual(codes, src, inverse)
		return largest / levels
	}
	for len(src) >= 8 && len(codes) >= lanes {
		word := binary.LittleEndian.Uint64(src)
		binary.LittleEndian.PutUint32(codes,
			code(uint32(word)<<16, inverse)|
				code(uint32(word)&0xffff_0000, inverse)<<8|
				code(uint32(word>>16)&0xffff_0000, inverse)<<16|
				code(uint32(word>>32)&0xffff_0000, inverse)<<24)
		src, codes = src[8:], codes[lanes:]
	}
	return largest / levels
}

// code returns the code of a finite element, given as float32 bits.
func code(element uint32, inverse float32) uint32 {
	// The conversion prevents a fused multiply-add.
	return math.Float32bits(float32(math.Float32frombits(element)*inverse)+integers) & 0xff
}

// encodeUnusual encodes a head with non-finite elements.
func encodeUnusual(codes, src []byte, inverse float32) {
	for i := range codes {
		element := binary.LittleEndian.Uint16(src[i*elementBytes:])
		switch {
		case element&magnitude > infinity:
			codes[i] = 0
		case element == infinity:
			codes[i] = levels
		case element == infinity|sign:
			codes[i] = 256 - levels
		default:
			codes[i] = byte(code(uint32(element)<<16, inverse))
		}
	}
}

// largestMagnitude is the largest magnitude among the finite elements; finite reports
// whether all are. Magnitudes of bf16 compare like their bits.
func largestMagnitude(src []byte) (largest float32, finite bool) {
	var most uint64 // four lanes
	for rest := src; len(rest) >= 8; rest = rest[8:] {
		word := binary.LittleEndian.Uint64(rest) & magnitudes
		// The sign bit of each lane is free: it stays set where word is not below most.
		above := ((word | signs) - most) & signs >> 15
		above = above<<16 - above // all bits of such lanes
		most = word&above | most&^above
	}
	top := uint32(0)
	for ; most != 0; most >>= 16 {
		top = max(top, uint32(most&magnitude))
	}
	if top < infinity {
		return math.Float32frombits(top << 16), true
	}
	top = 0
	for ; len(src) >= elementBytes; src = src[elementBytes:] {
		if m := uint32(binary.LittleEndian.Uint16(src) & magnitude); m < infinity {
			top = max(top, m)
		}
	}
	return math.Float32frombits(top << 16), false
}

// decodeHead writes the elements of a head's codes.
func decodeHead(dst, codes []byte, scale float32) {
	var elements [256]uint64
	for i := range uint64(levels + 1) {
		elements[i] = nearest(float32(i) * scale)
		elements[(256-i)%256] = elements[i] | sign
	}
	elements[0] = 0
	elements[128] = elements[256-levels]
	for len(codes) >= lanes && len(dst) >= 8 {
		four := binary.LittleEndian.Uint32(codes)
		binary.LittleEndian.PutUint64(dst, elements[four&0xff]|
			elements[four>>8&0xff]<<16|elements[four>>16&0xff]<<32|elements[four>>24]<<48)
		codes, dst = codes[lanes:], dst[8:]
	}
}

// nearest rounds a finite float32 to the bits of the nearest bf16, half to even.
func nearest(x float32) uint64 {
	bits := uint64(math.Float32bits(x))
	return (bits + magnitude + bits>>16&1) >> 16
}
