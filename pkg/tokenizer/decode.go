package tokenizer

import "unicode/utf8"

// Decode returns the text of ids. Bytes that make no character become U+FFFD, one
// for each longest run of bytes that begins a character and does not end it (the
// Unicode standard's "maximal subpart", as Rust and Python do); where the file's
// decoder has ByteFallback, one for each byte of a run of byte tokens that is not
// UTF-8 as a whole. Ids that no token has stand for nothing. skipSpecial leaves
// special tokens out. Nothing else is done to the text: no space is cleaned up.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	if !t.decoder.bytes {
		s := t.NewStream(skipSpecial)
		s.whole = true
		for _, id := range ids {
			s.next(id)
		}
		s.end()
		return string(s.out)
	}
	total := 0
	for _, id := range ids {
		total += len(t.pieces.get(id))
	}
	raw := make([]byte, 0, total)
	for _, id := range ids {
		if skipSpecial && t.special[id] {
			continue
		}
		raw = append(raw, t.pieces.get(id)...)
	}
	if utf8.Valid(raw) {
		return string(raw)
	}
	text, open := appendText(make([]byte, 0, total+total/2), raw)
	if len(open) > 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	return string(text)
}

// appendText appends raw to dst as UTF-8, up to where raw ends inside a character;
// open is that beginning of one.
func appendText(dst, raw []byte) (text, open []byte) {
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r != utf8.RuneError || size > 1 {
			dst = append(dst, raw[:size]...)
			raw = raw[size:]
			continue
		}
		n, more := beginning(raw)
		if more {
			return dst, raw
		}
		dst = utf8.AppendRune(dst, utf8.RuneError)
		raw = raw[n:]
	}
	return dst, nil
}

// beginning measures, in raw that does not begin with a character, the bytes that
// begin one (at least 1, so that something is replaced). more says that they are
// all of raw and that bytes to come may complete the character. The bounds are those
// of table 3-7 of the Unicode standard.
func beginning(raw []byte) (n int, more bool) {
	first := raw[0]
	var need int
	low, high := byte(0x80), byte(0xBF)
	switch {
	case first >= 0xC2 && first <= 0xDF:
		need = 2
	case first >= 0xE0 && first <= 0xEF:
		need = 3
		switch first {
		case 0xE0:
			low = 0xA0
		case 0xED:
			high = 0x9F
		}
	case first >= 0xF0 && first <= 0xF4:
		need = 4
		switch first {
		case 0xF0:
			low = 0x90
		case 0xF4:
			high = 0x8F
		}
	default:
		return 1, false
	}
	for n = 1; n < need; n++ {
		if n == len(raw) {
			return n, true
		}
		if raw[n] < low || raw[n] > high {
			return n, false
		}
		low, high = 0x80, 0xBF
	}
	return n, false
}
