package tokenizer_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/unicode/rangetable"
	"unicode"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

var normalForms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

// Of every character that both know, and of random strings of them, the forms are
// those of x/text.
func TestNormalForms(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
	known := rangetable.Merge(rangetable.Assigned("12.0.0"), rangetable.New('\u32FF'))
	var odd []rune // those that decompose or combine
	for name, reference := range normalForms {
		form := tokenizer.Form(name)
		for r := rune(0x80); r <= utf8.MaxRune; r++ {
			if !unicode.Is(known, r) {
				continue
			}
			// Between two others, so that no quick check decides; a mark of class 230
			// behind it may have to move.
			for _, text := range []string{string(r), "a" + string(r) + "\u0323\u0301" + "e\u0301"} {
				if got, want := form(text), reference.String(text); got != want {
					t.Fatalf("%s of %+q is %+q, want %+q", name, text, got, want)
				}
			}
			if name == "NFC" && !reference.IsNormalString("a"+string(r)+"\u0301") || reference.Properties([]byte(string(r))).CCC() != 0 {
				odd = append(odd, r)
			}
		}
	}
	random := rand.New(rand.NewPCG(9, 10))
	odd = append(odd, 'a', 'e', 'A', 'o', 0x1100, 0x1101, 0x1161, 0x1175, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0x11A7, 0x11C3, 0x1176)
	forms := make(map[string]func(string) string)
	for name := range normalForms {
		forms[name] = tokenizer.Form(name)
	}
	for range 10_000 {
		var b strings.Builder
		for range 1 + random.IntN(12) {
			b.WriteRune(odd[random.IntN(len(odd))])
			if random.IntN(2) == 0 {
				b.WriteRune([]rune{'a', 'e', 0x0301, 0x0323, 0x0345, 0x1100, 0x1161, 0x11A8, 0x0338, 0x3099}[random.IntN(10)])
			}
		}
		for name, reference := range normalForms {
			if got, want := forms[name](b.String()), reference.String(b.String()); got != want {
				t.Fatalf("%s of %+q is %+q, want %+q", name, b.String(), got, want)
			}
		}
	}
}

// What the library does and x/text does not.
func TestNormalFormsLikeTheLibrary(t *testing.T) {
	longtest.OneGoroutine(t)
	marks := strings.Repeat("\u0301", 100)
	for _, c := range []struct{ form, text, want string }{
		{"NFC", "e" + marks, "é" + marks[2:]}, // x/text puts U+034F into long runs
		{"NFD", "é" + marks, "e\u0301" + marks},
		{"NFC", "e" + marks + "\u0323", "\u1eb9" + marks}, // sorted, however long
		{"NFD", strings.Repeat("\u0301\u0323\u0300", 50) + "a", strings.Repeat("\u0323", 50) + strings.Repeat("\u0301\u0300", 50) + "a"},
		{"NFC", "\U00011935\U00011930", "\U00011935\U00011930"}, // a composition of Unicode 13
		{"NFKC", "\U0001E030", "\U0001E030"},                    // a decomposition of Unicode 15
		{"NFKC", "\u32ff", "令和"},                                // one of 12.1
		{"NFC", "e\xff\u0301\xc3", "e\xff\u0301\xc3"},           // bytes that are no text stay
		{"NFC", "e\u0301\xff", "é\xff"},
		{"NFC", "각\u1161\u11a8", "각\u1161\u11a8"},
		{"NFC", "\u1100\u1161\u11a8", "각"},
	} {
		if got := tokenizer.Form(c.form)(c.text); got != c.want {
			t.Errorf("%s of %+q is %+q, want %+q", c.form, c.text, got, c.want)
		}
	}
}
