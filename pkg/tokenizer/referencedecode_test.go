package tokenizer_test

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decode is the library's decode_chain of each decoder, over lists of tokens.
func (r referenceTokenizer) decode(tokens []string) string {
	return strings.Join(r.decodeChain(r.file["decoder"].(part), tokens), "")
}

func (r referenceTokenizer) decodeChain(c part, tokens []string) []string {
	out := []string{}
	switch c["type"] {
	case "Sequence":
		for _, inner := range c["decoders"].([]part) {
			tokens = r.decodeChain(inner, tokens)
		}
		return tokens
	case "Fuse":
		return []string{strings.Join(tokens, "")}
	case "Replace":
		for _, token := range tokens {
			out = append(out, strings.ReplaceAll(token, c["pattern"].(part)["String"].(string), c["content"].(string)))
		}
	case "Metaspace":
		for i, token := range tokens {
			with := " "
			if i == 0 && c["prepend_scheme"] != "never" {
				with = ""
			}
			out = append(out, strings.ReplaceAll(token, c["replacement"].(string), with))
		}
	case "Strip":
		for _, token := range tokens {
			chars := []rune(token)
			is, _ := utf8.DecodeRuneInString(c["content"].(string))
			for n := 0; n < c["start"].(int) && len(chars) > 0 && chars[0] == is; n++ {
				chars = chars[1:]
			}
			for n := 0; n < c["stop"].(int) && len(chars) > 0 && chars[len(chars)-1] == is; n++ {
				chars = chars[:len(chars)-1]
			}
			out = append(out, string(chars))
		}
	case "ByteFallback":
		run := ""
		end := func() {
			text := run
			if !utf8.ValidString(run) {
				text = ""
				if r.live {
					text = validStart(run)
				}
			}
			if text != "" {
				out = append(out, text)
			}
			out = append(out, slices.Repeat([]string{"\ufffd"}, len(run)-len(text))...)
			run = ""
		}
		for _, token := range tokens {
			if len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
				if b, err := strconv.ParseUint(token[3:5], 16, 8); err == nil {
					run += string([]byte{byte(b)})
					continue
				}
			}
			end()
			out = append(out, token)
		}
		end()
	default:
		r.t.Fatalf("reference: no decoder %v", c)
	}
	return out
}

// validStart is text up to where it is not UTF-8.
func validStart(text string) string {
	for i, c := range text {
		if c == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return text[:i]
		}
	}
	return text
}

// streamed is what a Stream says of tokens.
func (r referenceTokenizer) streamed(tokens []string) string {
	r.live = !r.waits()
	return r.decode(tokens)
}

// waits says whether a run of bytes that is given in parts would be something else
// to a decoder behind it.
func (r referenceTokenizer) waits() bool {
	bytes := false
	for _, c := range r.file["decoder"].(part)["decoders"].([]part) {
		switch {
		case c["type"] == "Fuse":
			return false
		case bytes && c["type"] == "Replace" && utf8.RuneCountInString(c["pattern"].(part)["String"].(string)) > 1,
			bytes && (c["type"] == "Strip" || c["type"] == "ByteFallback"):
			return true
		}
		bytes = bytes || c["type"] == "ByteFallback"
	}
	return false
}
