package cpu

import "encoding/binary"

// infinite is the exponent of a bf16 that is infinite or NaN.
const infinite = 0x7f80

// someInfinite says whether one of many bf16 is infinite or NaN, four at a time.
func someInfinite(bf16 []byte) bool {
	const exponents, ones, tops = 0x7f807f807f807f80, 0x0001000100010001, 0x8000800080008000
	i := 0
	for ; i+8 <= len(bf16); i += 8 {
		// Of an exponent of ones nothing is left, and 1 less than that has the top bit.
		if left := ^binary.LittleEndian.Uint64(bf16[i:]) & exponents; (left-ones)&tops != 0 {
			return true
		}
	}
	for ; i < len(bf16); i += 2 {
		if isInfinite(bf16[i:]) {
			return true
		}
	}
	return false
}

func isInfinite(bf16 []byte) bool { return binary.LittleEndian.Uint16(bf16)&infinite == infinite }

// NotFinite implements engine.Checking. Of int8 only scales can be infinite or NaN, and
// they are where a head of a token was.
func (e *cpuEngine) NotFinite(slice []byte, n int) int {
	spec, tokens := e.weights.spec, e.config.BlockTokens
	elements := spec.KVHeads * tokens * spec.HeadSize // of keys, and of values
	first := n
	if e.config.KV == KVInt8 {
		for i, scales := 0, slice[2*elements:][:4*spec.KVHeads*tokens]; i < len(scales); i += 2 {
			if isInfinite(scales[i:]) {
				first = min(first, i/2%tokens)
			}
		}
		return first
	}
	keys, values := slice[:2*elements], slice[2*elements:][:2*elements]
	if !someInfinite(keys) && !someInfinite(values) {
		return n
	}
	for i := range elements {
		if isInfinite(keys[2*i:]) { // pairs of dimensions side by side, token behind token
			first = min(first, i/2%tokens)
		}
		if isInfinite(values[2*i:]) { // pairs of tokens side by side, dimension behind dimension
			first = min(first, i/2/spec.HeadSize%(tokens/2)*2+i%2)
		}
	}
	return first
}
