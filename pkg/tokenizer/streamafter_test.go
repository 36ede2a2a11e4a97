package tokenizer_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// A continuation keeps the space that begins it, in each way in which a file may ask
// for it to be taken away at the start of a text.
func TestContinuationKeepsItsSpace(t *testing.T) {
	for form, change := range forms {
		f := readSentencePiece(t, "words")
		change(f)
		f["added_tokens"] = append(f["added_tokens"].([]any), part{
			"id": 1000, "content": "[/INST]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
		tok := f.parse(t)
		const start, inst = 1, 1000 // <s>, [/INST]
		out := tok.Encode("is one of the two", false)
		if text := tok.Decode(out, true); text != "is one of the two" {
			t.Fatalf("%s: %q", form, text)
		}
		for name, c := range map[string]struct {
			prompt []int32
			want   string
		}{
			"text":                     {tok.Encode("There", true), " is one of the two"},
			"no start token":           {tok.Encode("There", false), " is one of the two"},
			"spaces":                   {tok.Encode("   ", true), " is one of the two"},
			"special tokens at an end": {append(tok.Encode("There", true), inst, inst, inst, inst, inst, inst, inst, inst), " is one of the two"},
			// Nothing is left of these where special tokens are left out, so that the
			// text begins here.
			"nothing":              {nil, "is one of the two"},
			"start token":          {[]int32{start}, "is one of the two"},
			"special tokens alone": {[]int32{start, inst}, "is one of the two"},
		} {
			if got := continuation(tok.NewStreamAfter(c.prompt, true), out); got != c.want {
				t.Errorf("%s, %s: %q, want %q", form, name, got, c.want)
			}
			all := tok.Decode(slices.Concat(c.prompt, out), true)
			if got := tok.Decode(c.prompt, true) + c.want; got != all {
				t.Errorf("%s, %s: prompt and text are %q, decoded together they are %q", form, name, got, all)
			}
		}
		// Where special tokens are text, a start token is text to continue.
		if got, want := continuation(tok.NewStreamAfter([]int32{start}, false), out), " is one of the two"; got != want {
			t.Errorf("%s: behind a start token that is kept: %q, want %q", form, got, want)
		}
	}
}

// Cut anywhere, the text of the prompt and that of its continuation are the text.
func TestContinuationIsTheRest(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	toks := map[string]*tokenizer.Tokenizer{"fable": openFable(t)}
	for form, change := range forms {
		f := readSentencePiece(t, "words")
		change(f)
		toks[form] = f.parse(t)
	}
	file, err := os.Open("testdata/sentencepiece-words.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for number := 0; lines.Scan(); number++ {
		var c exactCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if number%4 != 0 {
			continue
		}
		for name, tok := range toks {
			ids := tok.Encode(c.Text, true)
			all := tok.Decode(ids, true)
			for cut := range len(ids) + 1 {
				text := continuation(tok.NewStreamAfter(ids[:cut], true), ids[cut:])
				if prompt := tok.Decode(ids[:cut], true); !continues(prompt, text, all) {
					t.Fatalf("%s: %q, then %q, decoded together %q", name, prompt, text, all)
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// A prompt that ends inside a character.
func TestContinuationOfACharacter(t *testing.T) {
	words := readSentencePiece(t, "words").parse(t)
	wordsByte := func(b byte) int32 {
		id, _ := words.TokenID(byteName(b))
		return id
	}
	bytes := newFile().parse(t)
	strip := newFile()
	strip["decoder"] = part{"type": "Sequence", "decoders": []part{{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}}}
	for name, c := range map[string]struct {
		tok *tokenizer.Tokenizer
		id  func(byte) int32
		// each is whether bytes that are no text are U+FFFD one by one.
		each bool
	}{
		"bytes":           {bytes, func(b byte) int32 { return int32(b) }, false},
		"bytes and Strip": {strip.parse(t), func(b byte) int32 { return int32(b) }, false},
		"byte fallback":   {words, wordsByte, true},
	} {
		ids := func(text string) (ids []int32) {
			for i := range len(text) {
				ids = append(ids, c.id(text[i]))
			}
			return ids
		}
		for _, x := range []struct{ prompt, text, want, wantEach string }{
			{"\xe6\x9c", "\xac!", "本!", "本!"},
			{"x\xf0", "\x9f\x91\x8d", "👍", "👍"},
			{"\xe6\x9c", " a", " a", " a"},         // the prompt's character is lost: its U+FFFD is the prompt's
			{"\xe6\x9c", "", "", ""},               // it is not completed
			{"\xe6", "\x9c", "", "\ufffd"},         // nor here
			{"\xe6", "\x9c!", "!", "\ufffd\ufffd"}, // a run: the ! is a byte of it
			{"\xe0", "\x80", "\ufffd", "\ufffd"},   // E0 80 begins nothing
			{"\xef\xbf", "\xbd", "\ufffd", "\ufffd"},
			{"é", "é", "é", "é"},
		} {
			want := x.want
			if c.each {
				want = x.wantEach
				if x.text == " a" {
					want = "\ufffd\ufffd"
				}
			}
			prompt, out := ids(x.prompt), ids(x.text)
			if got := continuation(c.tok.NewStreamAfter(prompt, true), out); got != want {
				t.Errorf("%s: % x after % x is %q, want %q", name, x.text, x.prompt, got, want)
			}
		}
	}
}

// A character that is spelled in byte tokens is given as soon as it is complete.
func TestStreamDoesNotWaitForARunOfBytes(t *testing.T) {
	for form, change := range forms {
		f := readSentencePiece(t, "words")
		change(f)
		tok := f.parse(t)
		ids := func(text string) (ids []int32) {
			for i := range len(text) {
				id, ok := tok.TokenID(byteName(text[i]))
				if !ok {
					t.Fatalf("no token for % x", text[i])
				}
				ids = append(ids, id)
			}
			return ids
		}
		the, _ := tok.TokenID("▁the")
		for _, c := range []struct {
			ids    []int32
			want   string // "|" behind each id
			decode string
		}{
			{ids("\n"), "\n||", "\n"},
			{ids("\n\n👍é"), "\n|\n||||👍||é||", "\n\n👍é"},
			{slices.Concat(ids("\xf0\x9f"), []int32{the}), "||\ufffd\ufffd the||", "\ufffd\ufffd the"},
			// This alone differs from Decode: what came before a run turned out to
			// be no text has been given. The rest of the run is U+FFFD, byte by byte.
			{ids("\né\xffé"), "\n||é|\ufffd|\ufffd|\ufffd||", "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"},
			{ids("é\xe6\x9c"), "|é|||\ufffd\ufffd|", "\ufffd\ufffd\ufffd\ufffd"},
			{slices.Concat(ids("é\xe6"), []int32{the}, ids("é")), "|é||\ufffd the||é||", "\ufffd\ufffd\ufffd theé"},
		} {
			if got := strings.Join(stream(tok, c.ids, false), "|") + "|"; got != c.want {
				t.Errorf("%s: stream of %v = %q, want %q", form, c.ids, got, c.want)
			}
			if got := tok.Decode(c.ids, false); got != c.decode {
				t.Errorf("%s: Decode(%v) = %q, want %q", form, c.ids, got, c.decode)
			}
		}
	}
}

// byteName is the token that stands in for a byte.
func byteName(b byte) string { return fmt.Sprintf("<0x%02X>", b) }
