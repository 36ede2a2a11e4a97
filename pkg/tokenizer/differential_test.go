package tokenizer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// Components that files may be put together from.
var (
	replaceSpace = part{"type": "Replace", "pattern": part{"String": " "}, "content": "▁"}
	normalizers  = []part{
		{"type": "Prepend", "prepend": "▁"}, replaceSpace, {"type": "Replace", "pattern": part{"String": "ab"}, "content": ""},
		{"type": "NFC"}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
		{"type": "Strip", "strip_left": true, "strip_right": false}, {"type": "Strip", "strip_left": true, "strip_right": true},
	}
	decoders = []part{
		{"type": "Replace", "pattern": part{"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
		{"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Strip", "content": "a", "start": 2, "stop": 3},
		{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"},
		{"type": "Replace", "pattern": part{"String": "ab"}, "content": "▁"},
	}
	afterFuse = []part{
		{"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "Strip", "content": "a", "start": 2, "stop": 3},
		{"type": "Strip", "content": "▁", "start": 1, "stop": 1}, {"type": "Replace", "pattern": part{"String": "b"}, "content": "▁a"}, {"type": "Fuse"},
	}
	textParts = []string{"a", "b", "c", "A", " ", "  ", "▁", "é", "e\u0301", "İ", "1", "٢", "½", "ﬁ", "日", "👍", "\n", "<x>", "<y>", "ab", "\u3000", "B\u0323\u0307", "\U0001D400", "\U0001D401"}
)

func randomFile(t *rapid.T) file {
	alphabet := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "▁", "é", "1", "e", "日", "👍"}), 2, 7, rapid.ID).Draw(t, "alphabet")
	vocab := part{}
	add := func(token string) {
		if _, ok := vocab[token]; !ok {
			vocab[token] = len(vocab)
		}
	}
	for _, char := range alphabet {
		add(char)
	}
	model := part{"type": "BPE", "vocab": vocab, "byte_fallback": rapid.Bool().Draw(t, "byte_fallback"), "fuse_unk": rapid.Bool().Draw(t, "fuse_unk")}
	if rapid.Bool().Draw(t, "unk") {
		add("<unk>")
		model["unk_token"] = "<unk>"
	}
	every := rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "bytes there")
	for b := 0; b < 256; b += every {
		add(fmt.Sprintf("<0x%02X>", b))
	}
	parts := slices.Clone(alphabet)
	merges := []any{}
	for range rapid.IntRange(0, 25).Draw(t, "merges") {
		m := []string{rapid.SampledFrom(parts).Draw(t, "left"), rapid.SampledFrom(parts).Draw(t, "right")}
		if len(m[0]+m[1]) < 20 {
			merges = append(merges, m)
			add(m[0] + m[1])
			parts = append(parts, m[0]+m[1])
		}
	}
	if rapid.Bool().Draw(t, "in any order") {
		merges = rapid.Permutation(merges).Draw(t, "order")
	}
	model["merges"] = merges
	if rapid.IntRange(0, 4).Draw(t, "ignore_merges") == 0 {
		model["ignore_merges"] = true
	}
	f := file{"version": "1.0", "added_tokens": []part{}, "model": model, "decoder": randomDecoder(t)}
	if chosen := rapid.SliceOfN(rapid.SampledFrom(normalizers), 0, 3).Draw(t, "normalizers"); len(chosen) > 0 {
		f["normalizer"] = part{"type": "Sequence", "normalizers": chosen}
	}
	if chosen := rapid.SliceOfN(rapid.Custom(randomPreTokenizer), 0, 2).Draw(t, "pre-tokenizers"); len(chosen) > 0 {
		f["pre_tokenizer"] = part{"type": "Sequence", "pretokenizers": chosen}
	}
	if rapid.Bool().Draw(t, "added") {
		f.add("<x>", nil).add("<y>", part{"normalized": true, "special": false})
	}
	return f
}

func randomPreTokenizer(t *rapid.T) part {
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		return part{"type": "Digits", "individual_digits": rapid.Bool().Draw(t, "individual")}
	case 1:
		return part{"type": "Metaspace", "replacement": "▁", "split": rapid.Bool().Draw(t, "split"),
			"prepend_scheme": rapid.SampledFrom([]string{"always", "first", "never"}).Draw(t, "scheme")}
	default:
		return part{"type": "Split", "pattern": part{"String": rapid.SampledFrom([]string{" ", "a", "ab", "▁"}).Draw(t, "pattern")},
			"behavior": rapid.SampledFrom([]string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}).Draw(t, "behavior"),
			"invert":   rapid.Bool().Draw(t, "invert")}
	}
}

func randomDecoder(t *rapid.T) part {
	chosen := rapid.SliceOfN(rapid.SampledFrom(decoders), 0, 4).Draw(t, "decoders")
	if rapid.Bool().Draw(t, "fuse") {
		chosen = append(append(chosen, part{"type": "Fuse"}), rapid.SliceOfN(rapid.SampledFrom(afterFuse), 0, 2).Draw(t, "after Fuse")...)
	}
	return part{"type": "Sequence", "decoders": chosen}
}

// continues says whether text is what all has behind prompt. Where prompt ends inside
// a character, all has that in place of the U+FFFD for its bytes.
func continues(prompt, text, all string) bool {
	if rest, ok := strings.CutPrefix(all, prompt); ok {
		return text == rest
	}
	for range 3 {
		prompt = strings.TrimSuffix(prompt, "\ufffd")
		if rest, ok := strings.CutPrefix(all, prompt); ok && text == rest {
			return true
		}
	}
	// What a Strip held back at the prompt's end was given out with its U+FFFD.
	return text != "" && strings.HasSuffix(all, text)
}

// Whatever a file puts together, texts become the ids that the reference says, and
// ids the text, at once or one by one.
func TestFilesAgreeWithTheReference(t *testing.T) {
	longtest.OneGoroutine(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := randomFile(rt)
		tok, err := tokenizer.Parse(f.json(t))
		if err != nil {
			rt.Skip(err) // a token that a normalizer leaves nothing of
		}
		ref := referenceTokenizer{t: t, file: f}
		content := make(map[int32]string)
		for token, id := range f.model()["vocab"].(part) {
			content[int32(id.(int))] = token
		}
		highest := int32(len(content) + 2)
		for _, token := range f["added_tokens"].([]part) {
			content[int32(token["id"].(int))] = token["content"].(string)
		}
		chars := []string{"▁", "▁", " "}
		for char := range f.model()["vocab"].(part) {
			if utf8.RuneCountInString(char) == 1 {
				chars = append(chars, char, char, char)
			}
		}
		slices.Sort(chars)
		for i := range 12 {
			parts := chars
			if i%3 == 0 {
				parts = slices.Concat(chars, textParts)
			}
			text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 20).Draw(rt, "text"), "")
			got, want := tok.Encode(text, false), ref.encode(text)
			if !slices.Equal(got, want) {
				rt.Fatalf("%s\n%q\n got %v\nwant %v", f.json(t), text, got, want)
			}
			if got, err := tok.EncodeContext(t.Context(), text, false, max(1, len(want))); err != nil || !slices.Equal(got, want) {
				rt.Fatalf("%s\n%q within the limit: %v, %v", f.json(t), text, got, err)
			}
		}
		for range 5 {
			ids := rapid.SliceOfN(rapid.Int32Range(0, highest), 0, 20).Draw(rt, "ids")
			if rapid.Bool().Draw(rt, "of a text") {
				ids = tok.Encode(strings.Join(rapid.SliceOfN(rapid.SampledFrom(textParts), 0, 10).Draw(rt, "text"), ""), false)
			}
			tokens := []string{}
			for _, id := range ids {
				if token, ok := content[id]; ok {
					tokens = append(tokens, token)
				}
			}
			want := ref.decode(tokens)
			if got := tok.Decode(ids, false); got != want {
				rt.Fatalf("%v\n%q\n got %q\nwant %q", f["decoder"], tokens, got, want)
			}
			want = ref.streamed(tokens)
			if got := strings.Join(stream(tok, ids, false), ""); got != want {
				rt.Fatalf("%v\n%q\nstreams %q\n   want %q", f["decoder"], tokens, got, want)
			}
			if ref.waits() {
				continue
			}
			cut := rapid.IntRange(0, len(ids)).Draw(rt, "prompt")
			known := slices.DeleteFunc(slices.Clone(ids[:cut]), func(id int32) bool { _, ok := content[id]; return !ok })
			prompt := ref.streamed(tokens[:len(known)])
			text := continuation(tok.NewStreamAfter(ids[:cut], false), ids[cut:])
			if !continues(prompt, text, want) {
				rt.Fatalf("%v\n%q\ncontinue, after %d, with %q\nprompt %q\n  all %q", f["decoder"], tokens, len(known), text, prompt, want)
			}
		}
	})
}
