package tokenizer_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// FuzzRoundTrip: text comes back, whatever it is; what is no UTF-8 comes back with
// its bytes replaced; a stream says the same; no limit on tokens changes an encoding
// that is within it.
func FuzzRoundTrip(f *testing.F) {
	fable := openFable(f)
	for _, c := range readCases(f)[:80] {
		f.Add([]byte(c.Text))
	}
	for _, seed := range []string{
		"<|begin_of_text|><|end_of_text", "\x00\x01\x02", "\xff\xfe\xc3(", "\xed\xa0\x80", "a\xf0\x9f\x91", "ß's 'S ſ",
		strings.Repeat("never", 30), strings.Repeat(" \n", 40), "हिन्दी ภาษาไทย ٣٤٥ ⅧⅨ 👩\u200d👩\u200d👧",
	} {
		f.Add([]byte(seed))
	}
	for _, alphabet := range alphabets {
		f.Add([]byte(strings.Join(alphabet, "")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := string(data)
		ids := fable.Encode(text, false)
		back := fable.Decode(ids, false)
		if utf8.ValidString(text) {
			if back != text {
				t.Fatalf("%q comes back as %q", text, back)
			}
		} else if !utf8.ValidString(back) || !slices.Equal([]rune(strings.ReplaceAll(back, "\ufffd", "")), validOnly(text)) {
			t.Fatalf("% x comes back as %q", text, back)
		}
		for _, id := range ids {
			if id < 0 || int(id) >= fable.VocabSize() {
				t.Fatalf("id %d", id)
			}
		}
		for _, skip := range []bool{false, true} {
			if got, want := strings.Join(stream(fable, ids, skip), ""), fable.Decode(ids, skip); got != want {
				t.Fatalf("the stream is %q, decoded it is %q", got, want)
			}
		}
		if len(ids) > 0 {
			if got, err := fable.EncodeContext(t.Context(), text, false, len(ids)); err != nil || !slices.Equal(got, ids) {
				t.Fatalf("within the limit: %v, %v", got, err)
			}
		}
	})
}

// validOnly is text without what is no UTF-8, and without U+FFFD itself.
func validOnly(text string) []rune {
	runes := []rune{}
	for _, r := range text {
		if r != utf8.RuneError {
			runes = append(runes, r)
		}
	}
	return runes
}

// FuzzSentencePiece: text of any bytes comes back from a tokenizer that sees characters,
// but for a ▁ that becomes a space, and a stream says what decoding says.
func FuzzSentencePiece(f *testing.F) {
	tok := readSentencePiece(f, "words").parse(f)
	for _, alphabet := range alphabets {
		f.Add(strings.Join(alphabet, ""))
	}
	f.Add("▁ ▁a\x00👍\xff<s>")
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text, false)
		got := tok.Decode(ids, false)
		s := strings.Join(stream(tok, ids, false), "")
		if !utf8.ValidString(s) || s != got && utf8.ValidString(text) {
			t.Fatalf("the stream is %q, decoded it is %q", s, got)
		}
		// Prompts that end anywhere, the middle of a character too.
		for _, cut := range []int{0, len(ids) / 2, max(0, len(ids)-1)} {
			prompt := strings.Join(stream(tok, ids[:cut], false), "")
			if c := continuation(tok.NewStreamAfter(ids[:cut], false), ids[cut:]); !continues(prompt, c, s) {
				t.Fatalf("%q continues %q of %q", c, prompt, s)
			}
		}
		if strings.Contains(text, "<") || !utf8.ValidString(text) {
			return // added tokens, and bytes that make a run no text
		}
		if want := strings.ReplaceAll(text, "▁", " "); got != want {
			t.Fatalf("%q comes back as %q", text, got)
		}
	})
}

// FuzzScanners: the hand-written scanners and the interpreter of the regular
// expressions cut alike.
func FuzzScanners(f *testing.F) {
	for _, alphabet := range alphabets {
		f.Add(strings.Join(alphabet, ""))
	}
	refs := make(map[string]reference)
	splitters := make(map[string]func(string) []string)
	for _, pattern := range tokenizer.Patterns {
		refs[pattern] = compileReference(f, pattern)
		splitters[pattern] = tokenizer.Splitter(pattern)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 {
			return // the interpreter recurses once for every character
		}
		for pattern, ref := range refs {
			if got, want := splitters[pattern](text), ref.split(text); !slices.Equal(got, want) {
				t.Errorf("%s\ncuts %q\n got %q\nwant %q", pattern, text, got, want)
			}
		}
	})
}

// FuzzParse: whatever the file says, there is an error or a tokenizer that works.
func FuzzParse(f *testing.F) {
	full := newFile([2]string{"a", "b"}, [2]string{"ab", "c"}).
		add("<x>", part{"lstrip": true}).
		add("ab", part{"id": 256, "normalized": true, "rstrip": true, "single_word": true})
	full["pre_tokenizer"] = part{"type": "Sequence", "pretokenizers": []part{
		{"type": "Split", "pattern": part{"Regex": tokenizer.Patterns[0]}, "behavior": "Isolated", "invert": false},
		{"type": "ByteLevel", "add_prefix_space": true, "use_regex": true},
	}}
	full["post_processor"] = part{
		"type": "TemplateProcessing", "pair": []part{},
		"single":         []part{{"SpecialToken": part{"id": "<x>", "type_id": 0}}, {"Sequence": part{"id": "A", "type_id": 0}}},
		"special_tokens": part{"<x>": part{"id": "<x>", "ids": []int{1000}, "tokens": []string{"<x>"}}},
	}
	full.model()["ignore_merges"] = true
	f.Add(full.json(f))
	f.Add(newFile().json(f))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":["a a"]}}`))
	f.Add([]byte(strings.Repeat("[", 20_000)))
	for _, change := range forms {
		f.Add(func() []byte {
			small := readSentencePiece(f, "words")
			change(small)
			return small.json(f)
		}())
	}
	full["normalizer"] = part{"type": "Sequence", "normalizers": normalizers[:4]}
	full["pre_tokenizer"] = part{"type": "Split", "pattern": part{"String": "a"}, "behavior": "MergedWithNext", "invert": true}
	full["decoder"] = part{"type": "Sequence", "decoders": slices.Concat(decoders, []part{{"type": "Fuse"}}, afterFuse)}
	f.Add(full.json(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := tokenizer.Parse(data)
		if (tok == nil) == (err == nil) {
			t.Fatalf("Parse = %v, %v", tok, err)
		}
		if err != nil {
			return
		}
		for _, text := range []string{"", "abc ab <x>  1\n", "\xffab", strings.Repeat("ab", 50)} {
			ids := tok.Encode(text, true)
			got, want := strings.Join(stream(tok, ids, false), ""), tok.Decode(ids, false)
			if !utf8.ValidString(got) || got != want && !strings.Contains(want, "\ufffd") {
				t.Fatalf("the stream is %q, decoded it is %q", got, want)
			}
		}
	})
}
