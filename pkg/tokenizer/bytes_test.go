package tokenizer_test

import "testing"

func TestTokenBytes(t *testing.T) {
	for form, change := range forms {
		f := readSentencePiece(t, "words")
		change(f)
		tok := f.parse(t)
		for content, want := range map[string]string{"▁the": " the", "<0x0A>": "\n", "<0xC3>": "\xc3", "<s>": "<s>", "▁": " "} {
			id, ok := tok.TokenID(content)
			if got := tok.TokenBytes(id); !ok || string(got) != want {
				t.Errorf("%s: %q stands for %q, want %q", form, content, got, want)
			}
		}
	}
	if got := newFile().parse(t).TokenBytes(0xC3); string(got) != "\xc3" {
		t.Errorf("got %q", got)
	}
	if got := newFile().parse(t).TokenBytes(5000); got != nil {
		t.Errorf("got %q", got)
	}
}
