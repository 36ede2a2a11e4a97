package tokenizer_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// alphabets to draw adversarial text from; an element may be no UTF-8.
var alphabets = map[string][]string{
	"mixed": strings.Split("s S t r R e E v m l L d D ſ K ' ' ’ 1 2 9 ٣ ४ Ⅷ ² ½ ① . ! - _ < | > é \u0301 \u0308 न \u093f \u094d ก \u0e31 日 本 👍 \u200d 🏽 🏳 \ufe0f "+
		"ʰ ª º ʼ 𝕏 𝟙 𐄇 \u200b \ufeff \x00 \x01 \x1c \x1f \x7f \ufffd \xff \xc3 \xe2\x82 \xed\xa0\x80 \xf0\x9f", " "),
	"white space":  {" ", " ", "\n", "\r", "\r\n", "\t", "\v", "\f", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "a", "1", "."},
	"contractions": {"'", "'", "s", "S", "ſ", "t", "r", "R", "e", "E", "v", "l", "L", "m", "d", " ", "a"},
	"lines":        {" ", "\n", "\r", ".", "a", "\u0301"},
	"digits":       {"1", "2", "٣", "Ⅷ", "½", "①", "𝟙", " ", "a", ","},
}

func draw(r *rand.Rand, alphabet []string, length int) string {
	var b strings.Builder
	for range length {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

func TestScannersAgreeWithTheRegularExpressions(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	everything := []string{" ", "\n"}
	for _, letters := range alphabets {
		everything = append(everything, letters...)
	}
	for _, pattern := range tokenizer.Patterns {
		ref, split := compileReference(t, pattern), tokenizer.Splitter(pattern)
		r := rand.New(rand.NewPCG(1, 2))
		check := func(text string) {
			if got, want := split(text), ref.split(text); !slices.Equal(got, want) {
				t.Fatalf("%s\ncuts %q\n got %q\nwant %q", pattern, text, got, want)
			}
		}
		for range 3000 {
			check(draw(r, everything, 1+r.IntN(24)))
			for _, alphabet := range alphabets {
				check(draw(r, alphabet, 1+r.IntN(16)))
			}
		}
	}
}

// Every character up to the end of the second plane, eight at a time, each before a
// letter and behind one.
func TestEveryCharacter(t *testing.T) {
	longtest.OneGoroutine(t)
	pattern := tokenizer.Patterns[0]
	ref, split := compileReference(t, pattern), tokenizer.Splitter(pattern)
	var text strings.Builder
	for c := rune(0); c < 0x20000; c++ {
		text.WriteRune(c)
		text.WriteString("a")
		if c%8 != 7 {
			continue
		}
		if got, want := split(text.String()), ref.split(text.String()); !slices.Equal(got, want) {
			t.Fatalf("cuts %q\n got %q\nwant %q", text.String(), got, want)
		}
		text.Reset()
	}
}

func TestSplitByHand(t *testing.T) {
	llama3, qwen2, gpt2 := tokenizer.Patterns[0], tokenizer.Patterns[2], tokenizer.Patterns[3]
	for _, c := range []struct {
		pattern, text string
		want          []string
	}{
		{llama3, "I'LL we'Ve 'ſo", []string{"I", "'LL", " we", "'Ve", " '", "ſo"}},
		{llama3, "x'ſo 'tis", []string{"x", "'ſ", "o", " '", "tis"}},
		{llama3, "12345٣٤", []string{"123", "45٣", "٤"}},
		{qwen2, "12Ⅷ", []string{"1", "2", "Ⅷ"}},
		{gpt2, "I'LL 12345 !?", []string{"I", "'", "LL", " 12345", " !?"}},
		{llama3, "a  b", []string{"a", " ", " b"}},
		{llama3, "a \n \n  b", []string{"a", " \n \n", " ", " b"}},
		{llama3, "a \r\n", []string{"a", " \r\n"}},
		{llama3, "!?\r\n\n x", []string{"!?\r\n\n", " x"}},
		{llama3, "a\u00a0\u00a0b  ", []string{"a", "\u00a0", "\u00a0b", "  "}},
		{llama3, "हिन्दी", []string{"ह", "\u093fन", "\u094dद", "\u0940"}},
		{llama3, "\ta\t\tb", []string{"\ta", "\t", "\tb"}},
	} {
		if got := tokenizer.Splitter(c.pattern)(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q is cut to %q, want %q", c.text, got, c.want)
		}
	}
}
