package tokenizer_test

import (
	"encoding/json"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// file is a tokenizer.json to be changed by a test.
type file map[string]any

// part is a JSON object.
type part = map[string]any

// symbolOf is the byte alphabet as GPT-2 published it, written down a second time.
func symbolOf(b byte) string {
	var moved []int
	for c := range 256 {
		if c <= ' ' || c >= 0x7F && c <= 0xA0 || c == 0xAD {
			moved = append(moved, c)
		}
	}
	for n, c := range moved {
		if c == int(b) {
			return string(rune(256 + n))
		}
	}
	return string(rune(b))
}

func spell(text string) string {
	spelled := ""
	for i := range len(text) {
		spelled += symbolOf(text[i])
	}
	return spelled
}

// newFile has the 256 bytes as ids 0 to 255, then a token for each merge's result,
// and leaves text whole. Merges are given in plain bytes.
func newFile(merges ...[2]string) file {
	vocab := part{}
	for b := range 256 {
		vocab[symbolOf(byte(b))] = b
	}
	pairs := []any{}
	for _, m := range merges {
		a, b := spell(m[0]), spell(m[1])
		if _, ok := vocab[a+b]; !ok {
			vocab[a+b] = len(vocab)
		}
		pairs = append(pairs, []string{a, b})
	}
	return file{
		"version":       "1.0",
		"added_tokens":  []part{},
		"pre_tokenizer": part{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"decoder":       part{"type": "ByteLevel"},
		"model":         part{"type": "BPE", "vocab": vocab, "merges": pairs},
	}
}

// add appends an added token with the next free id.
func (f file) add(content string, fields part) file {
	tokens := f["added_tokens"].([]part)
	token := part{
		"id": 1000 + len(tokens), "content": content, "single_word": false,
		"lstrip": false, "rstrip": false, "normalized": false, "special": true,
	}
	for k, v := range fields {
		token[k] = v
	}
	f["added_tokens"] = append(tokens, token)
	return f
}

func (f file) model() part { return f["model"].(part) }

func (f file) json(t testing.TB) []byte {
	t.Helper()
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (f file) parse(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Parse(f.json(t))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
