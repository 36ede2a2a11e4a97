package tokenizer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// A normalizer may make one byte of four: the number of bytes says no more than that.
func TestMaxTokensOfWhatShrinks(t *testing.T) {
	for _, form := range []string{"NFKC", "NFKD"} {
		f := newFile()
		f["normalizer"] = part{"type": form}
		tok := f.parse(t)
		text := strings.Repeat("\U0001D400", 100) // a mathematical A
		if ids, err := tok.EncodeContext(t.Context(), text, false, 100); err != nil || len(ids) != 100 {
			t.Errorf("%s: %d ids, %v", form, len(ids), err)
		}
		if _, err := tok.EncodeContext(t.Context(), text, false, 99); !errors.Is(err, tokenizer.ErrTooLong) {
			t.Errorf("%s: %v", form, err)
		}
	}
}

func TestMaxTokens(t *testing.T) {
	fable := openFable(t)
	swallowing := newFile().add("<x>", part{"lstrip": true}).parse(t)
	for _, c := range []struct {
		tok  *tokenizer.Tokenizer
		text string
	}{
		{fable, ""},
		{fable, "Once upon a time there was a king."},
		{fable, "<|pad|><|pad|>"},
		{fable, strings.Repeat("the ", 50)},
		{fable, strings.Repeat("antidisestablishment", 40)},
		{swallowing, strings.Repeat(" ", 1000) + "<x>"},
	} {
		for _, special := range []bool{false, true} {
			want := c.tok.Encode(c.text, special)
			for limit := 1; limit < len(want)+3; limit++ {
				got, err := c.tok.EncodeContext(t.Context(), c.text, special, limit)
				switch {
				case limit < len(want) && (got != nil || !errors.Is(err, tokenizer.ErrTooLong)):
					t.Errorf("%.20q with a limit of %d: %v, %v; want ErrTooLong", c.text, limit, got, err)
				case limit >= len(want) && (err != nil || !slices.Equal(got, want)):
					t.Errorf("%.20q with a limit of %d: %v, %v; want %v", c.text, limit, got, err, want)
				}
			}
		}
	}
}

// A limit counts the tokens that the template puts behind the text.
func TestMaxTokensCountsTheTemplate(t *testing.T) {
	f := newFile()
	f["post_processor"] = part{
		"type": "TemplateProcessing", "pair": []part{},
		"single":         []part{{"Sequence": part{"id": "A", "type_id": 0}}, {"SpecialToken": part{"id": "e", "type_id": 0}}},
		"special_tokens": part{"e": part{"id": "e", "ids": []int{1, 2}, "tokens": []string{"e", "e"}}},
	}
	tok := f.parse(t)
	if _, err := tok.EncodeContext(t.Context(), "abc", true, 4); !errors.Is(err, tokenizer.ErrTooLong) {
		t.Errorf("error %v", err)
	}
	if got, err := tok.EncodeContext(t.Context(), "abc", true, 5); err != nil || len(got) != 5 {
		t.Errorf("got %v, %v", got, err)
	}
}

// A prompt that is far too long is refused by its length.
func TestHugePromptIsRefusedAtOnce(t *testing.T) {
	longtest.OneGoroutine(t)
	tok := openFable(t)
	text := strings.Repeat("a", 100_000_000)
	allocations := testing.AllocsPerRun(1, func() {
		if _, err := tok.EncodeContext(t.Context(), text, true, 2048); !errors.Is(err, tokenizer.ErrTooLong) {
			t.Errorf("error %v", err)
		}
	})
	if allocations > 10 {
		t.Errorf("%v allocations", allocations)
	}
}

func TestEndedContext(t *testing.T) {
	tok := openFable(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("client is gone")
	cancel(gone)
	if got, err := tok.EncodeContext(ctx, "Once", true, 0); got != nil || !errors.Is(err, gone) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", got, err)
	}
}

// A byte that the vocabulary lacks becomes the unknown token, or nothing: GPT-NeoX and
// StarCoder have no token for F1, with which the planes 4 to 7 begin.
func TestBytesWithoutSymbols(t *testing.T) {
	const text = "a\U00040000\U00040000b"
	bytes := []int32{0x80, 0x80, 0x80}
	for _, c := range []struct {
		name    string
		unknown bool
		want    []int32
	}{
		{"no unknown token", false, slices.Concat([]int32{'a'}, bytes, bytes, []int32{'b'})},
		{"an unknown token", true, slices.Concat([]int32{'a', 300}, bytes, []int32{300}, bytes, []int32{'b'})},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFile()
			vocab := f.model()["vocab"].(part)
			for _, b := range []byte{0xC0, 0xC1, 0xF1, 0xF2, 0xF5, 0xFF} {
				delete(vocab, symbolOf(b))
			}
			if c.unknown {
				vocab["<unk>"] = 300
				f.model()["unk_token"] = "<unk>"
			}
			tok := f.parse(t)
			if got := tok.Encode(text, false); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
