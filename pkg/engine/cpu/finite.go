package cpu

import "github.com/tandem-serving/tandem/pkg/engine/internal/finite"

// NotFinite implements engine.Checking. Of int8 only scales can be infinite or NaN, and
// they are where a head of a token was.
func (e *cpuEngine) NotFinite(slice []byte, n int) int {
	spec, tokens := e.weights.spec, e.config.BlockTokens
	elements := spec.KVHeads * tokens * spec.HeadSize // of keys, and of values
	first := n
	if e.config.KV == KVInt8 {
		for i, scales := 0, slice[2*elements:][:4*spec.KVHeads*tokens]; i < len(scales); i += 2 {
			if !finite.OneBF16(scales[i:]) {
				first = min(first, i/2%tokens)
			}
		}
		return first
	}
	keys, values := slice[:2*elements], slice[2*elements:][:2*elements]
	if finite.BF16(keys) && finite.BF16(values) {
		return n
	}
	for i := range elements {
		if !finite.OneBF16(keys[2*i:]) { // pairs of dimensions side by side, token behind token
			first = min(first, i/2%tokens)
		}
		if !finite.OneBF16(values[2*i:]) { // pairs of tokens side by side, dimension behind dimension
			first = min(first, i/2/spec.HeadSize%(tokens/2)*2+i%2)
		}
	}
	return first
}
