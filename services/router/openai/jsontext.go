package openai

import "unicode/utf8"

// appendJSON appends text as a string of JSON, in the very bytes that marshal writes.
func appendJSON(b []byte, text string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, text[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\b':
				b = append(b, '\\', 'b')
			case '\f':
				b = append(b, '\\', 'f')
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, text[start:i]...), `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029': // line ends to JavaScript
			b = append(append(b, text[start:i]...), '\\', 'u', '2', '0', '2', hex[r&15])
			start = i + size
		}
		i += size
	}
	return append(append(b, text[start:]...), '"')
}
