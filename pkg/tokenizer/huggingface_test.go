package tokenizer_test

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// huggingFaceCase is a line of testdata/huggingface.jsonl, which
// testdata/huggingface.py describes.
type huggingFaceCase struct {
	Variant        string         `json:"variant"`
	Text           string         `json:"text"`
	AddSpecial     bool           `json:"add_special_tokens"`
	IDs            []int32        `json:"token_ids"`
	Decoded        string         `json:"decoded"`
	DecodeOnly     bool           `json:"decode_only"`
	DecodedSpecial string         `json:"decoded_special"`
	Change         map[string]any `json:"change"`
}

// TestAgreesWithHuggingFace compares encodings and decodings with those that the
// library made, for the bundled tokenizer and for variants of its file: other
// patterns, ByteLevel with its own, ignore_merges, and added tokens of every
// kind.
func TestAgreesWithHuggingFace(t *testing.T) {
	longtest.OneGoroutine(t)
	file, err := os.Open("testdata/huggingface.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	variants := make(map[string]*tokenizer.Tokenizer)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c huggingFaceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if variants[c.Variant] == nil {
			variants[c.Variant] = variant(t, c)
		}
		tok := variants[c.Variant]
		if !c.DecodeOnly {
			if got := tok.Encode(c.Text, c.AddSpecial); !slices.Equal(got, c.IDs) {
				t.Errorf("%s: %q is %v, want %v", c.Variant, c.Text, got, c.IDs)
			}
		} else if got := tok.Decode(c.IDs, false); got != c.DecodedSpecial {
			t.Errorf("%s: %v decodes to %q with special tokens, want %q", c.Variant, c.IDs, got, c.DecodedSpecial)
		}
		if got := tok.Decode(c.IDs, true); got != c.Decoded {
			t.Errorf("%s: %v decodes to %q, want %q", c.Variant, c.IDs, got, c.Decoded)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(variants) != 7 {
		t.Errorf("%d variants, there are 7", len(variants))
	}
}

// variant is the bundled tokenizer with what the first case of a variant changes.
func variant(t *testing.T, c huggingFaceCase) *tokenizer.Tokenizer {
	t.Helper()
	text, err := os.ReadFile("../../models/fable/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for key, value := range c.Change {
		if key == "ignore_merges" {
			file["model"].(map[string]any)[key] = value
			continue
		}
		file[key] = value
	}
	changed, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(changed)
	if err != nil {
		t.Fatalf("%s: %v", c.Variant, err)
	}
	return tok
}
