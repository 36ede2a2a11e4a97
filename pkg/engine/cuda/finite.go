package cuda

import (
	"bytes"

	"github.com/tandem-serving/tandem/pkg/model"
)

// The NaNs of fp8, e4m3, which has no infinities.
const (
	fp8NaN         = 0x7f
	fp8NegativeNaN = 0xff
)

// NotFinite implements engine.Checking.
func (e *cudaEngine) NotFinite(slice []byte, n int) int {
	s, tokens := e.weights.shape, e.config.BlockTokens
	rows := 2 * s.kvHeads * tokens // of keys and then values, a token of a head each
	first := n
	note := func(row int) { first = min(first, row%tokens) }
	if e.config.KV == KVFP8 {
		if codes := slice[:rows*s.stride]; bytes.IndexByte(codes, fp8NaN) >= 0 || bytes.IndexByte(codes, fp8NegativeNaN) >= 0 {
			for i, code := range codes {
				if code == fp8NaN || code == fp8NegativeNaN {
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
	for i := range model.BF16.NotFinite(slice[:2*rows*s.stride]) {
		if i%s.stride < s.headSize {
			note(i / s.stride)
		}
	}
	return first
}
