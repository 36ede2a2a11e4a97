package grammar_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
)

// White space in patterns is that of ECMA-262; in regular expressions, that of RE2.
func TestWhiteSpaceOfPatterns(t *testing.T) {
	spaces := "\t\n\v\f\r \u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
	others := "\x00\x08\x0e\x1fa0_\"\\é\u009f\u00a1\u167f\u1681\u180e\u1fff\u200b\u2027\u202a\u2030\u2060\u3001\ufefe\uff00😀"
	for _, c := range []struct{ pattern, is, isNot string }{
		{`^\s$`, spaces, others},
		{`^\S$`, others, spaces},
		{`^[\s]$`, spaces, others},
		{`^[^\s]$`, others, spaces},
		{`^[\S]$`, others, spaces},
		{`^[^\S]$`, spaces, others},
		{`^[\s\S]$`, spaces + others, ""},
		{`^[a\s]$`, "a" + spaces, "b0_"},
		{`^[\s-x]$`, "-x" + spaces, "abw"},
		{`^[]\s]$`, "]" + spaces, "ab["},
		{`^[^]\s]$`, "ab[", "]" + spaces},
		{`^[[:digit:]\s]$`, "09" + spaces, "a:]["},
		{`^[\]\s]$`, "]" + spaces, "ab\\"},
		{`^\[?\S$`, others, spaces},
		{`^(?i:\S)$`, others + "kK", spaces},
		{`^\\?[s]$`, "s", "S" + spaces},
	} {
		form, err := grammar.Compile(t.Context(), schema(fmt.Sprintf(`{"type":"string","pattern":%s}`, quote(t, c.pattern))), nil)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for text, want := range map[string]bool{c.is: true, c.isNot: false} {
			for _, r := range text {
				if got := form.Accepts([]byte(spelling(t, r))); got != want {
					t.Errorf("%s: accepts %q: %v", c.pattern, r, got)
				}
			}
		}
	}
	for pattern, texts := range map[string][2]string{`^\Q\s[\E\S$`: {`\s[a`, `\s[` + "\v"}, `^a\\s$`: {`a\s`, "a "}, `^\Sa|\s$`: {"ba", "\va"}} {
		form, err := grammar.Compile(t.Context(), schema(fmt.Sprintf(`{"type":"string","pattern":%s}`, quote(t, pattern))), nil)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for i, text := range texts {
			if got := form.Accepts([]byte(quote(t, text))); got != (i == 0) {
				t.Errorf("%s: accepts %q: %v", pattern, text, got)
			}
		}
	}
	for _, pattern := range []string{`[\x00-\s]`, `[\x00-\S]`, `[\x00-\d]`} {
		if _, err := grammar.Compile(t.Context(), schema(fmt.Sprintf(`{"type":"string","pattern":%s}`, quote(t, pattern))), nil); err == nil {
			t.Errorf("%s: a range ends with a class", pattern)
		}
	}
	form, err := grammar.Compile(t.Context(), expression(`\S`), nil)
	if err != nil || !form.Accepts([]byte("\u00a0")) {
		t.Errorf("RE2's \\S is without U+00A0: %v", err)
	}
}

// spelling is a string of one character as outputs have it.
func spelling(t *testing.T, r rune) string {
	t.Helper()
	if r == '\u2028' || r == '\u2029' {
		return `"` + string(r) + `"`
	}
	text, err := json.Marshal(string(r))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
