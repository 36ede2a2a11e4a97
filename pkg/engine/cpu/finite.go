package cpu

import "github.com/tandem-serving/tandem/pkg/model"

// NotFinite implements engine.Checking. Of int8 only scales can be infinite or NaN, and
// they are where a head of a token was.
func (e *cpuEngine) NotFinite(slice []byte, n int) int {
	spec, tokens := e.weights.spec, e.config.BlockTokens
	elements := spec.KVHeads * tokens * spec.HeadSize // of keys, and of values
	first := n
	if e.config.KV == KVInt8 {
		for i := range model.BF16.NotFinite(slice[2*elements:][:4*spec.KVHeads*tokens]) {
			first = min(first, i%tokens)
		}
		return first
	}
	for i := range model.BF16.NotFinite(slice[:2*elements]) { // pairs of dimensions side by side, token behind token
		first = min(first, i/2%tokens)
	}
	for i := range model.BF16.NotFinite(slice[2*elements:][:2*elements]) { // pairs of tokens side by side, dimension behind dimension
		first = min(first, i/2/spec.HeadSize%(tokens/2)*2+i%2)
	}
	return first
}
