package tokenizer_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// referenceTokenizer does what a tokenizer.json says step by step, each in the
// simplest way and over the whole text, as slow as that may be: what the package is
// compared with. It knows what randomFile makes, and UTF-8 only.
type referenceTokenizer struct {
	t    testing.TB
	file file
	// live gives the beginning of a run of bytes that is UTF-8, as a Stream does.
	live bool
}

// refPiece is text of which first says that it is at the start of the whole, or an
// added token.
type refPiece struct {
	text  string
	first bool
	token int32 // -1: text
}

func (r referenceTokenizer) encode(text string) []int32 {
	ids := []int32{}
	for _, raw := range r.added(refPiece{text, true, -1}, false) {
		if raw.token >= 0 {
			ids = append(ids, raw.token)
			continue
		}
		raw.text = r.normalize(r.file["normalizer"], raw.text)
		for _, late := range r.added(raw, true) {
			if late.token >= 0 {
				ids = append(ids, late.token)
				continue
			}
			for _, piece := range r.preTokenize(r.file["pre_tokenizer"], []refPiece{late}) {
				ids = append(ids, r.merge(piece.text)...)
			}
		}
	}
	return ids
}

// added cuts p at the added tokens that are, or are not, looked for after normalization.
func (r referenceTokenizer) added(p refPiece, normalized bool) []refPiece {
	pieces := []refPiece{}
	done, i := 0, 0
	text := func(end int) {
		if end > done {
			pieces = append(pieces, refPiece{p.text[done:end], p.first && done == 0, -1})
		}
	}
	for i < len(p.text) {
		best, id := "", int32(-1)
		for _, token := range r.file["added_tokens"].([]part) {
			content := token["content"].(string)
			if token["normalized"].(bool) != normalized {
				continue
			}
			if normalized {
				content = r.normalize(r.file["normalizer"], content)
			}
			if strings.HasPrefix(p.text[i:], content) && len(content) > len(best) {
				best, id = content, int32(token["id"].(int))
			}
		}
		if id < 0 {
			i++
			continue
		}
		text(i)
		pieces = append(pieces, refPiece{token: id})
		i += len(best)
		done = i
	}
	text(len(p.text))
	return pieces
}

func (r referenceTokenizer) normalize(component any, text string) string {
	if component == nil {
		return text
	}
	c := component.(part)
	switch c["type"] {
	case "Sequence":
		for _, inner := range c["normalizers"].([]part) {
			text = r.normalize(inner, text)
		}
		return text
	case "Prepend":
		if text == "" {
			return ""
		}
		return c["prepend"].(string) + text
	case "Replace":
		return strings.Join(strings.Split(text, c["pattern"].(part)["String"].(string)), c["content"].(string))
	case "Strip":
		for c["strip_left"].(bool) && text != "" {
			first, size := utf8.DecodeRuneInString(text)
			if !unicode.IsSpace(first) {
				break
			}
			text = text[size:]
		}
		for c["strip_right"].(bool) && text != "" {
			last, size := utf8.DecodeLastRuneInString(text)
			if !unicode.IsSpace(last) {
				break
			}
			text = text[:len(text)-size]
		}
		return text
	case "NFC":
		return norm.NFC.String(text)
	case "NFKD":
		return norm.NFKD.String(text)
	case "StripAccents":
		return strings.Map(func(c rune) rune {
			if unicode.Is(unicode.M, c) {
				return -1
			}
			return c
		}, text)
	case "Lowercase":
		return strings.ReplaceAll(strings.Map(func(c rune) rune {
			if c == 'İ' {
				return c
			}
			return unicode.ToLower(c)
		}, text), "İ", "i\u0307")
	}
	r.t.Fatalf("reference: no normalizer %v", c)
	return ""
}

// refSpan is a stretch of a text and whether it matches.
type refSpan struct {
	start, end int
	match      bool
}

func (r referenceTokenizer) preTokenize(component any, pieces []refPiece) []refPiece {
	if component == nil {
		return pieces
	}
	c := component.(part)
	out := []refPiece{}
	cut := func(p refPiece, spans []refSpan, behavior string) {
		for _, s := range refBehavior(spans, behavior) {
			if s.end > s.start {
				out = append(out, refPiece{p.text[s.start:s.end], p.first && s.start == 0, -1})
			}
		}
	}
	switch c["type"] {
	case "Sequence":
		for _, inner := range c["pretokenizers"].([]part) {
			pieces = r.preTokenize(inner, pieces)
		}
		return pieces
	case "Split":
		for _, p := range pieces {
			spans := refMatches(p.text, c["pattern"].(part)["String"].(string))
			for i := range spans {
				spans[i].match = spans[i].match != c["invert"].(bool)
			}
			cut(p, spans, c["behavior"].(string))
		}
	case "Digits":
		for _, p := range pieces {
			var spans []refSpan
			for i, char := range p.text {
				spans = append(spans, refSpan{i, i + utf8.RuneLen(char), unicode.Is(unicode.N, char)})
			}
			// Characters that are no digits stay together.
			spans = slices.Collect(func(yield func(refSpan) bool) {
				for i := 0; i < len(spans); {
					j := i + 1
					for !spans[i].match && j < len(spans) && !spans[j].match {
						j++
					}
					if !yield(refSpan{spans[i].start, spans[j-1].end, spans[i].match}) {
						return
					}
					i = j
				}
			})
			if c["individual_digits"].(bool) {
				cut(p, spans, "Isolated")
			} else {
				cut(p, spans, "Contiguous")
			}
		}
	case "Metaspace":
		with := c["replacement"].(string)
		for _, p := range pieces {
			p.text = strings.ReplaceAll(p.text, " ", with)
			scheme := c["prepend_scheme"].(string)
			if !strings.HasPrefix(p.text, with) && (scheme == "always" || scheme == "first" && p.first) {
				p.text = with + p.text
			}
			if c["split"].(bool) {
				cut(p, refMatches(p.text, with), "MergedWithNext")
			} else {
				out = append(out, p)
			}
		}
	default:
		r.t.Fatalf("reference: no pre-tokenizer %v", c)
	}
	return out
}

func refMatches(text, pattern string) []refSpan {
	var spans []refSpan
	at := 0
	for i, gap := range strings.Split(text, pattern) {
		if i > 0 {
			spans = append(spans, refSpan{at, at + len(pattern), true})
			at += len(pattern)
		}
		if gap != "" {
			spans = append(spans, refSpan{at, at + len(gap), false})
			at += len(gap)
		}
	}
	return spans
}

// refBehavior joins spans as the library's documentation says, each behavior by a
// rule of its own over the whole list.
func refBehavior(spans []refSpan, behavior string) []refSpan {
	out := []refSpan{}
	switch behavior {
	case "Isolated":
		return spans
	case "Removed":
		return slices.DeleteFunc(slices.Clone(spans), func(s refSpan) bool { return s.match })
	case "Contiguous":
		for i, s := range spans {
			if i > 0 && spans[i-1].match == s.match {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
	case "MergedWithPrevious":
		for i, s := range spans {
			if s.match && i > 0 && !spans[i-1].match {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
	case "MergedWithNext":
		for i, s := range slices.Backward(spans) {
			if s.match && i+1 < len(spans) && !spans[i+1].match {
				out[len(out)-1].start = s.start
			} else {
				out = append(out, s)
			}
		}
		slices.Reverse(out)
	}
	return out
}

func (r referenceTokenizer) merge(word string) []int32 {
	model := r.file.model()
	vocab := model["vocab"].(part)
	if id, ok := vocab[word]; ok && model["ignore_merges"] == true {
		return []int32{int32(id.(int))}
	}
	ids := []int32{}
	pending := 0
	unknown, hasUnknown := model["unk_token"].(string)
	for _, char := range word {
		if id, ok := vocab[string(char)]; ok {
			for ; pending > 0; pending-- {
				ids = append(ids, int32(vocab[unknown].(int)))
			}
			ids = append(ids, int32(id.(int)))
			continue
		}
		spelled := []int32{}
		for _, b := range []byte(string(char)) {
			code := strings.ToUpper(strconv.FormatInt(int64(b), 16))
			if id, ok := vocab["<0x"+strings.Repeat("0", 2-len(code))+code+">"]; ok && model["byte_fallback"] == true {
				spelled = append(spelled, int32(id.(int)))
			}
		}
		if len(spelled) == len(string(char)) {
			ids = append(ids, spelled...)
		} else if hasUnknown {
			if pending > 0 && model["fuse_unk"] != true {
				ids = append(ids, int32(vocab[unknown].(int)))
			}
			pending = 1
		}
	}
	for ; pending > 0; pending-- {
		ids = append(ids, int32(vocab[unknown].(int)))
	}
	content := map[int32]string{}
	for token, id := range vocab {
		content[int32(id.(int))] = token
	}
	for {
		best, at := -1, -1
		for i := 0; i+1 < len(ids); i++ {
			for rank, m := range slices.Backward(model["merges"].([]any)) {
				pair := m.([]string)
				if pair[0] == content[ids[i]] && pair[1] == content[ids[i+1]] {
					if best < 0 || rank < best {
						best, at = rank, i
					}
					break
				}
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, int32(vocab[content[ids[at]]+content[ids[at+1]]].(int)))
	}
}
