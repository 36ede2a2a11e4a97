package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// alphabet is how many token ids prompts may have, from 0 on.
type alphabet uint32

// minAlphabet keeps sixteen random tokens from ever being the same twice.
const minAlphabet = 16

func newAlphabet(vocabulary int) (alphabet, error) {
	if vocabulary < minAlphabet || int64(vocabulary) > 1<<32-1 {
		return 0, fmt.Errorf("a vocabulary of %d tokens: expected %d to 2^32-1; with fewer use --prompt-kind text", vocabulary, minAlphabet)
	}
	return alphabet(vocabulary), nil
}

// append appends n uniform ids. One number of 64 bits gives two: each half times
// the span, shifted (Lemire, "Fast random integer generation in an interval",
// 2019, without its rejection: no id is more likely than another by more than
// span/2^32). Fewer ids of equal numbers are a prefix of more.
func (a alphabet) append(ids []uint32, pcg *rand.PCG, n int) []uint32 {
	begin := len(ids)
	ids = slices.Grow(ids, n)[:begin+n]
	out, span := ids[begin:], uint64(a)
	for ; len(out) >= 2; out = out[2:] {
		bits := pcg.Uint64()
		out[0], out[1] = uint32((bits>>32)*span>>32), uint32((bits&0xFFFFFFFF)*span>>32)
	}
	if len(out) == 1 {
		out[0] = uint32((pcg.Uint64() >> 32) * span >> 32)
	}
	return ids
}
