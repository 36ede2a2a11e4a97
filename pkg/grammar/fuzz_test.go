package grammar_test

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func expression(text string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: text}}
}

// FuzzRegex holds expressions against the standard library's, whose automata are others.
func FuzzRegex(f *testing.F) {
	for _, c := range [][2]string{
		{"a|b*", "bb"}, {"(ab)+?c{2,3}", "ababcc"}, {`\d{3}-[^a-z]`, "123-é"}, {"(?i)straße", "STRASSE"}, {`\p{L}+`, "日本"}, {"^a$|b", "a"}, {"cat$|car$", "car"}, {".*", "\n"},
		{"(?s).*", "a\nb"}, {"(a|b|c|d){0,30}e", "abcde"}, {`[\x{10000}-\x{10FFFF}]`, "😀"}, {"", ""}, {"a{3}{3}", "aaaaaaaaa"}, {`[[:^alpha:]]`, "1"}, {"x*", ""}, {`\Q`, "0"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, text, input string) {
		if len(text) > 200 || len(input) > 200 || strings.Contains(text, `\u`) || !utf8.ValidString(input) {
			return
		}
		form, err := grammar.Compile(t.Context(), expression(text), nil)
		if err != nil {
			return
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Fatalf("%q is compiled, and not by the standard library: %v", text, err)
		}
		want := regexp.MustCompile(`\A(?:` + parsed.String() + `)\z`) // the text may quote all that follows
		if strings.ContainsAny(input, "\r\u2028\u2029") && strings.Contains(text, ".") {
			return // a point leaves out more line ends here, as ECMAScript's does
		}
		if got := form.Accepts([]byte(input)); got != want.MatchString(input) {
			t.Errorf("%q matches %q: %v", text, input, got)
		}
	})
}

// FuzzSchema compiles anything. What compiles can be walked.
func FuzzSchema(f *testing.F) {
	for _, text := range schemas {
		f.Add(text)
	}
	f.Add(`{"$ref":"#"}`)
	f.Add(`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`)
	f.Add(`{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"properties":{"b":{"$ref":"#/$defs/a"}}}}}`)
	f.Add(`{"minimum":1e99,"maximum":-1e-99}`)
	f.Add(`{"type":"string","pattern":"(a{1000}){1000}"}`)
	f.Add(`{"oneOf":[{"pattern":"^a"},{"pattern":"^b"}],"type":"string","maxLength":4}`)
	f.Fuzz(func(t *testing.T, text string) {
		form, err := grammar.Compile(t.Context(), schema(text), nil)
		if err != nil {
			return
		}
		form.Accepts([]byte(`{"a":[1,"x",{"b":null}]}`))
	})
}
