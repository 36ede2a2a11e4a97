package serving_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// llama2Forms are the ways in which tokenizer.json of Llama 2 and Mistral have the
// space at the start of a text put there and taken away.
var llama2Forms = map[string]map[string]any{
	"Prepend and Replace": {},
	"Metaspace first": {
		"normalizer":    nil,
		"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
	},
	"Metaspace decoder": {
		"normalizer":    nil,
		"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
		"decoder":       map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
	},
}

// The text of an answer continues the prompt: its first space is there, stop texts
// that begin with it are found, and prompt and answer are the whole text.
func TestTextContinuesThePrompt(t *testing.T) {
	data, err := os.ReadFile("../../../pkg/tokenizer/testdata/sentencepiece-words.json")
	if err != nil {
		t.Fatal(err)
	}
	for form, change := range llama2Forms {
		var file map[string]any
		if err := json.Unmarshal(data, &file); err != nil {
			t.Fatal(err)
		}
		for key, value := range change {
			file[key] = value
		}
		changed, err := json.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := tokenizer.Parse(changed)
		if err != nil {
			t.Fatal(err)
		}
		all := "There is one of the two"
		prompt, tokens := tok.Encode("There", true), tok.Encode(all, true)
		out := tokens[len(prompt):]
		if got := tok.Decode(prompt, true); got != "There" {
			t.Fatalf("%s: the prompt is %q", form, got)
		}
		for _, c := range []struct {
			prompt    []int32
			stops     []string
			text, hit string
		}{
			{prompt, nil, " is one of the two", ""},
			{prompt, []string{" is"}, "", " is"},
			{prompt, []string{" one"}, " is", " one"},
			{prompt[:1], []string{" is"}, "is one of the two", ""}, // a start token only: the text begins here
		} {
			text := serving.NewText(tok, c.prompt, c.stops, 0)
			got, hit := "", ""
			for _, token := range out {
				var more string
				if more, hit = text.Push(token); hit != "" {
					got += more
					break
				}
				got += more
			}
			if hit == "" {
				var more string
				more, hit = text.Flush()
				got += more
			}
			if got != c.text || hit != c.hit {
				t.Errorf("%s, stops %q: %q and %q, want %q and %q", form, c.stops, got, hit, c.text, c.hit)
			}
		}
	}
}

// A stop text of a line break is found when the line break comes, and not with the
// token behind it, where a line break is a token that stands in for a byte.
func TestStopAtALineBreak(t *testing.T) {
	data, err := os.ReadFile("../../../pkg/tokenizer/testdata/sentencepiece-words.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	line, ok := tok.TokenID("<0x0A>")
	if !ok {
		t.Fatal("no token for a line break")
	}
	text := serving.NewText(tok, tok.Encode("There", true), []string{"\n"}, 0)
	if out, stop := text.Push(line); out != "" || stop != "\n" {
		t.Errorf("a line break gives %q and the stop %q", out, stop)
	}
}
