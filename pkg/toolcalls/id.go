package toolcalls

import (
	"crypto/sha256"
	"fmt"
)

// CallID is the id of a call of an answer, whose seed is its own and nobody else's. It is a
// function of both, so that a stream that is resumed has the same ids. Mistral's templates ask
// for nine letters and digits.
func (f Format) CallID(seed string, call int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", seed, call))
	prefix, size := "call_", 24
	if f.Name == Mistral {
		prefix, size = "", 9
	}
	for i, b := range sum[:size] {
		sum[i] = letters[int(b)%len(letters)]
	}
	return prefix + string(sum[:size])
}
