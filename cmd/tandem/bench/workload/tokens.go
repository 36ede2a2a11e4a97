package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// alphabet is the token ids that prompts may have.
type alphabet struct {
	// first is the least id that is not avoided, span how many follow up to the last.
	first, span uint32
	// avoided has a bit for each id from first on; nil if none in the span is avoided,
	// as where special tokens stand at the ends of a vocabulary.
	avoided []uint64
	// usable is how many ids prompts may have.
	usable int
}

// minAlphabet keeps sixteen random tokens from ever being the same twice.
const minAlphabet = 16

func newAlphabet(vocabulary int, avoid []uint32) (*alphabet, error) {
	if vocabulary < 1 || int64(vocabulary) > 1<<32-1 {
		return nil, fmt.Errorf("a vocabulary of %d tokens: expected 1 to 2^32-1", vocabulary)
	}
	bits := make([]uint64, (vocabulary+63)/64)
	left := vocabulary
	for _, id := range avoid {
		if int64(id) < int64(vocabulary) && bits[id/64]>>(id%64)&1 == 0 {
			bits[id/64] |= 1 << (id % 64)
			left--
		}
	}
	if left < minAlphabet {
		return nil, fmt.Errorf("of %d tokens of the vocabulary %d may stand in a prompt, too few to make prompts of ids: use --prompt-kind text", vocabulary, left)
	}
	is := func(id int) bool { return bits[id/64]>>(id%64)&1 == 1 }
	first, last := 0, vocabulary-1
	for is(first) {
		first++
	}
	for is(last) {
		last--
	}
	a := &alphabet{first: uint32(first), span: uint32(last - first + 1), usable: left}
	if left < last-first+1 {
		a.avoided = make([]uint64, (last-first+64)/64)
		for i := range last - first + 1 {
			if is(first + i) {
				a.avoided[i/64] |= 1 << (i % 64)
			}
		}
	}
	return a, nil
}

// append appends n uniform ids. One number of 64 bits gives two: each half times
// the span, shifted (Lemire, "Fast random integer generation in an interval",
// 2019, without its rejection: no id is more likely than another by more than
// span/2^32). Fewer ids of equal numbers are a prefix of more.
func (a *alphabet) append(ids []uint32, pcg *rand.PCG, n int) []uint32 {
	begin := len(ids)
	ids = slices.Grow(ids, n)[:begin+n]
	out, span := ids[begin:], uint64(a.span)
	if a.avoided != nil {
		a.fillAround(out, pcg)
		return ids
	}
	for ; len(out) >= 2; out = out[2:] {
		bits := pcg.Uint64()
		out[0] = a.first + uint32((bits>>32)*span>>32)
		out[1] = a.first + uint32((bits&0xFFFFFFFF)*span>>32)
	}
	if len(out) == 1 {
		out[0] = a.first + uint32((pcg.Uint64()>>32)*span>>32)
	}
	return ids
}

// fillAround draws until enough ids are not avoided.
func (a *alphabet) fillAround(out []uint32, pcg *rand.PCG) {
	span := uint64(a.span)
	for i := 0; i < len(out); {
		bits := pcg.Uint64()
		for _, half := range [2]uint64{bits >> 32, bits & 0xFFFFFFFF} {
			id := uint32(half * span >> 32)
			if a.avoided[id/64]>>(id%64)&1 == 0 && i < len(out) {
				out[i] = a.first + id
				i++
			}
		}
	}
}
