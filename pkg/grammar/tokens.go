package grammar

import "math/bits"

// tokens is a set of tokens: their ids if they are few, else a bit for each token.
type tokens struct {
	few  []int32
	mask []uint64
}

func (t *tokens) some() bool { return t.mask != nil || len(t.few) > 0 }

// bytes is what the set takes, about.
func (t *tokens) bytes() int { return 4*len(t.few) + 8*len(t.mask) }

// add adds the set to a mask.
func (t *tokens) add(out []uint64) {
	if t.mask != nil {
		or(out, t.mask)
		return
	}
	for _, id := range t.few {
		set(out, id)
	}
}

// tokensOf is those of a mask, which stays the caller's.
func tokensOf(mask []uint64) (t tokens) {
	count := 0
	for _, word := range mask {
		count += bits.OnesCount64(word)
	}
	switch {
	case count == 0:
	case count > len(mask):
		t.mask = append(t.mask, mask...)
	default:
		t.few = make([]int32, 0, count)
		for i, word := range mask {
			for ; word != 0; word &= word - 1 {
				t.few = append(t.few, int32(i<<6+bits.TrailingZeros64(word)))
			}
		}
	}
	return t
}

func set(mask []uint64, id int32) { mask[id>>6] |= 1 << (id & 63) }

func or(dst, src []uint64) {
	for i, word := range src {
		dst[i] |= word
	}
}
