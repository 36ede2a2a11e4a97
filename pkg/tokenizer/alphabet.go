package tokenizer

import "unicode/utf8"

// alphabet is the one-to-one map between bytes and printable characters that
// byte-level BPE writes its vocabulary in (GPT-2's bytes_to_unicode): printable
// Latin-1 stands for itself, and the other 68 bytes, in order, are U+0100 and on.
type alphabet struct {
	char   [256]rune
	byteOf [0x100 + 68]int16 // -1: not in the alphabet
}

func newAlphabet() *alphabet {
	a := new(alphabet)
	for c := range a.byteOf {
		a.byteOf[c] = -1
	}
	shifted := rune(0x100)
	for b := range 256 {
		c := rune(b)
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if !printable {
			c = shifted
			shifted++
		}
		a.char[b] = c
		a.byteOf[c] = int16(b)
	}
	return a
}

// spells says whether token is written in the alphabet alone.
func (a *alphabet) spells(token string) bool {
	for _, c := range token {
		if int(c) >= len(a.byteOf) || a.byteOf[c] < 0 {
			return false
		}
	}
	return true
}

// appendBytes appends what token stands for. A token with a character outside the
// alphabet stands for its own UTF-8, and inAlphabet is false: BPE never reaches it,
// decoding does.
func (a *alphabet) appendBytes(dst []byte, token string) (out []byte, inAlphabet bool) {
	if !a.spells(token) {
		return append(dst, token...), false
	}
	for _, c := range token {
		dst = append(dst, byte(a.byteOf[c]))
	}
	return dst, true
}

// symbol is the vocabulary's spelling of one byte.
func (a *alphabet) symbol(b byte) string {
	return string(utf8.AppendRune(nil, a.char[b]))
}
