package cuda

import "github.com/tandem-serving/tandem/pkg/engine/internal/finite"

// NotFinite implements engine.Checking.
func (e *cudaEngine) NotFinite(slice []byte, n int) int {
	s, tokens := e.weights.shape, e.config.BlockTokens
	rows := 2 * s.kvHeads * tokens // of keys and then values, a token of a head each
	first := n
	note := func(row int) { first = min(first, row%tokens) }
	if e.config.KV == KVFP8 {
		if codes := slice[:rows*s.stride]; !finite.FP8(codes) {
			for i, code := range codes {
				if !finite.OneFP8(code) {
					note(i / s.stride)
				}
			}
		}
		for row, exponent := range slice[rows*s.stride:][:rows] {
			if exponent == 0xff {
				note(row)
			}
		}
		return first
	}
	if finite.BF16(slice[:2*rows*s.stride]) {
		return n
	}
	for i := range rows * s.stride {
		if i%s.stride < s.headSize && !finite.OneBF16(slice[2*i:]) {
			note(i / s.stride)
		}
	}
	return first
}
