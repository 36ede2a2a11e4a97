package cuda

import "encoding/binary"

// NotFinite implements engine.Checking.
func (e *cudaEngine) NotFinite(slice []byte, n int) int {
	s, tokens := e.weights.shape, e.config.BlockTokens
	rows := 2 * s.kvHeads * tokens // of keys and then values, a token of a head each
	first := n
	note := func(row int) { first = min(first, row%tokens) }
	if e.config.KV == KVFP8 {
		for i, code := range slice[:rows*s.stride] {
			if code&0x7f == 0x7f { // NaN in e4m3, which has no infinity
				note(i / s.stride)
			}
		}
		for row, exponent := range slice[rows*s.stride:][:rows] {
			if exponent == 0xff {
				note(row)
			}
		}
		return first
	}
	for i := range rows * s.stride {
		if i%s.stride < s.headSize && binary.LittleEndian.Uint16(slice[2*i:])&0x7f80 == 0x7f80 {
			note(i / s.stride)
		}
	}
	return first
}
