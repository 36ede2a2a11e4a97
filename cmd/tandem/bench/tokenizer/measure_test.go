package tokenizer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// words has one token a word, and remembers what it was given.
type words struct{ fails error }

func (w words) EncodeContext(_ context.Context, text string, _ bool, _ int) ([]int32, error) {
	return make([]int32, len(strings.Fields(text))), w.fails
}

func (w words) Decode([]int32, bool) string { return "" }

func TestMeasure(t *testing.T) {
	for _, text := range []string{"one two", strings.Repeat("a b\n", 20_000), strings.Repeat("日", 20_000), tokenizer.Corpus} {
		r, err := tokenizer.Measure(t.Context(), words{}, tokenizer.Plan{Text: text, Duration: 3 * time.Millisecond, Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		if r.TextBytes != len(text) || r.Threads != 2 {
			t.Errorf("%+v", r)
		}
		if r.TextTokens < len(strings.Fields(text)) {
			t.Errorf("%d tokens of %d words", r.TextTokens, len(strings.Fields(text)))
		}
		if !(r.Encode > 0 && r.Decode > 0 && r.Scan > 0 && r.EncodeShare > 0) {
			t.Errorf("%+v", r)
		}
	}
}

func TestMeasureRefuses(t *testing.T) {
	gone := errors.New("gone")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	plan := tokenizer.Plan{Text: "a", Duration: time.Millisecond, Threads: 1}
	for name, c := range map[string]struct {
		ctx    context.Context
		tok    words
		change func(*tokenizer.Plan)
		want   string
	}{
		"no text":     {t.Context(), words{}, func(p *tokenizer.Plan) { p.Text = "" }, "no text"},
		"no threads":  {t.Context(), words{}, func(p *tokenizer.Plan) { p.Threads = 0 }, "0 threads"},
		"no time":     {t.Context(), words{}, func(p *tokenizer.Plan) { p.Duration = 0 }, "duration"},
		"a failure":   {t.Context(), words{gone}, func(*tokenizer.Plan) {}, "gone"},
		"interrupted": {ended, words{}, func(*tokenizer.Plan) {}, "canceled"},
	} {
		p := plan
		c.change(&p)
		if r, err := tokenizer.Measure(c.ctx, c.tok, p); r != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
