package tokenizer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

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
