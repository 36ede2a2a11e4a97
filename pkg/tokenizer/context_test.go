package tokenizer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// countdown is a context that ends when it has been asked often enough.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *countdown) Done() <-chan struct{}       { return nil }
func (c *countdown) Deadline() (time.Time, bool) { return time.Time{}, false }

// In the middle of the text, of many added tokens and of one long piece, somebody
// looks whether the work is still wanted.
func TestContextEndsInTheMiddle(t *testing.T) {
	tok := openFable(t)
	for name, text := range map[string]string{
		"words":        strings.Repeat("once upon ", 10_000),
		"added tokens": strings.Repeat("<|pad|>", 100_000),
		"one piece":    strings.Repeat("once", 50_000),
	} {
		ctx := &countdown{Context: t.Context(), left: 3}
		if _, err := tok.EncodeContext(ctx, text, false, 0); err == nil {
			t.Errorf("%s: encoded to the end", name)
		}
	}
}

// Each step of a long normalization looks too, once for every four KiB: nothing is left
// of these texts, so that nothing behind the normalizer does.
func TestContextEndsWhileNormalizing(t *testing.T) {
	const length, every = 1 << 20, 4 << 10
	strip := part{"type": "Strip", "strip_left": true, "strip_right": true}
	accents := part{"type": "StripAccents"}
	replace := func(pattern part, content string) part {
		return part{"type": "Replace", "pattern": pattern, "content": content}
	}
	for name, c := range map[string]struct {
		steps []part
		text  string
		looks int // at least, for every four KiB
	}{
		"NFC":            {[]part{{"type": "NFC"}, strip}, "\u2000", 1}, // becomes U+2002
		"NFD":            {[]part{{"type": "NFD"}, strip}, "\u2000", 1},
		"NFKC":           {[]part{{"type": "NFKC"}, strip}, "\u3000", 1},
		"NFKD":           {[]part{{"type": "NFKD"}, strip}, "\u3000", 1},
		"Lowercase":      {[]part{{"type": "Lowercase"}, strip}, " ", 1},
		"StripAccents":   {[]part{accents}, "\u0301", 1},
		"Replace":        {[]part{replace(part{"String": " "}, "\t"), strip}, " ", 1},
		"Replace \\s+":   {[]part{replace(part{"Regex": `\s+`}, "\t"), replace(part{"String": "a\t"}, "")}, "a ", 2},
		"Replace {2,}":   {[]part{replace(part{"Regex": ` {2,}`}, " "), strip}, "  \t", 1},
		"marks in a row": {[]part{{"type": "NFC"}, accents}, "\u0301\u0323", 3}, // decompose, sort, take away
	} {
		f := newFile()
		f["normalizer"] = part{"type": "Sequence", "normalizers": c.steps}
		tok := f.parse(t)
		text := strings.Repeat(c.text, length/len(c.text))
		const plenty = 1 << 30
		ctx := &countdown{Context: t.Context(), left: plenty}
		if ids, err := tok.EncodeContext(ctx, text, false, 0); err != nil || len(ids) != 0 {
			t.Fatalf("%s: %d ids, %v", name, len(ids), err)
		}
		if asked, want := plenty-ctx.left, c.looks*len(text)/every; asked < want {
			t.Errorf("%s: %d looks at the context, want %d", name, asked, want)
		}
	}
}

// Putting the symbols of a long piece there looks, and so does what merges them.
func TestContextEndsInSymbols(t *testing.T) {
	const length, plenty = 1 << 20, 1 << 30
	for name, tok := range map[string]*tokenizer.Tokenizer{"bytes": newFile().parse(t), "characters": readSentencePiece(t, "words").parse(t)} {
		ctx := &countdown{Context: t.Context(), left: plenty}
		if _, err := tok.EncodeContext(ctx, strings.Repeat("x", length), false, 0); err != nil {
			t.Fatal(err)
		}
		if asked, want := plenty-ctx.left, length/(4<<10); asked < want {
			t.Errorf("%s: %d looks at the context, want %d", name, asked, want)
		}
	}
}
