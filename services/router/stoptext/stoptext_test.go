package stoptext_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/services/router/stoptext"
)

// run pushes pieces until a stop text is found or the text ends.
func run(stops, pieces []string) (text, stop string) {
	m := stoptext.New(stops)
	for _, piece := range pieces {
		out, stop := m.Push(piece)
		text += out
		if stop != "" {
			return text, stop
		}
	}
	return text + m.Flush(), ""
}

func TestMatcher(t *testing.T) {
	for _, test := range []struct {
		name       string
		stops      []string
		pieces     []string
		text, stop string
	}{
		{"none", nil, []string{"a", "b"}, "ab", ""},
		{"across pieces", []string{"END"}, []string{"the E", "N", "D of"}, "the ", "END"},
		{"a start that is none", []string{"END"}, []string{"E", "N", "E", "ND"}, "EN", "END"},
		{"held to the end", []string{"END"}, []string{"EN"}, "EN", ""},
		{"first to be complete", []string{"abcd", "bc"}, []string{"xabcd"}, "xa", "bc"},
		{"longest of those", []string{"c", "abc"}, []string{"xab", "c"}, "x", "abc"},
		{"overlapping itself", []string{"aab"}, []string{"a", "a", "a", "b"}, "a", "aab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if text, stop := run(test.stops, test.pieces); text != test.text || stop != test.stop {
				t.Errorf("got %q, %q, want %q, %q", text, stop, test.text, test.stop)
			}
		})
	}
}

// No stop text counts that ends in what is skipped.
func TestSkip(t *testing.T) {
	for _, test := range []struct {
		name         string
		stops        []string
		skip, pieces []string
		text, stop   string
	}{
		{"whole in it", []string{"END"}, []string{"the E", "ND of"}, []string{" it"}, "the END of it", ""},
		{"ends at its end", []string{"END"}, []string{"END"}, []string{"EN", "D"}, "END", "END"},
		{"begins in it", []string{"END"}, []string{"the EN"}, []string{"D"}, "the ", "END"},
		{"one in the start of another", []string{"ab", "xaby"}, []string{"xab"}, []string{"z"}, "xabz", ""},
		{"of these the longer", []string{"ab", "xaby"}, []string{"xab"}, []string{"y"}, "", "xaby"},
		{"a start that is none", []string{"END"}, []string{"EN"}, []string{"-END"}, "EN-", "END"},
		{"after what was held", []string{"aab"}, []string{"aa"}, []string{"a", "b"}, "a", "aab"},
		{"none", nil, []string{"a"}, []string{"b"}, "ab", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := stoptext.New(test.stops)
			var text, stop string
			for _, piece := range test.skip {
				text += m.Skip(piece)
			}
			for _, piece := range test.pieces {
				var out string
				if out, stop = m.Push(piece); stop != "" {
					text += out
					break
				}
				text += out
			}
			if stop == "" {
				text += m.Flush()
			}
			if text != test.text || stop != test.stop {
				t.Errorf("got %q, %q, want %q, %q", text, stop, test.text, test.stop)
			}
		})
	}
}

// What is found does not depend on the pieces, and nothing is given out early.
func TestPiecesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stops := rapid.SliceOfN(rapid.StringMatching(`[ab]{1,4}`), 1, 3).Draw(t, "stops")
		pieces := rapid.SliceOf(rapid.StringMatching(`[abc]{0,3}`)).Draw(t, "pieces")
		text, stop := run(stops, pieces)
		whole := strings.Join(pieces, "")
		var letters []string
		for _, r := range whole {
			letters = append(letters, string(r))
		}
		if text2, stop2 := run(stops, letters); text != text2 || stop != stop2 {
			t.Fatalf("pieces give %q, %q, letters %q, %q", text, stop, text2, stop2)
		}
		if !strings.HasPrefix(whole, text+stop) {
			t.Fatalf("%q and %q are not the start of %q", text, stop, whole)
		}
		for _, s := range stops {
			if strings.Contains(text, s) {
				t.Fatalf("%q holds the stop text %q", text, s)
			}
		}
		if stop == "" && text != whole {
			t.Fatalf("lost text: %q of %q", text, whole)
		}
	})
}
