package tokenizer_test

import (
	"slices"
	"strings"
	"testing"
)

func TestAddedTokens(t *testing.T) {
	const x, y, z = 1000, 1001, 1002
	plain := func(s string) []int32 {
		ids := []int32{}
		for i := range len(s) {
			ids = append(ids, int32(s[i]))
		}
		return ids
	}
	join := func(parts ...any) []int32 {
		ids := []int32{}
		for _, p := range parts {
			switch p := p.(type) {
			case string:
				ids = append(ids, plain(p)...)
			case int:
				ids = append(ids, int32(p))
			}
		}
		return ids
	}
	one := func(fields part) file { return newFile().add("<x>", fields) }
	for _, c := range []struct {
		name string
		file file
		text string
		want []int32
	}{
		{"in the middle", one(nil), "a<x>b", join("a", x, "b")},
		{"adjacent", one(nil), "<x><x>", join(x, x)},
		{"a part of one", one(nil), "<x <<x> x>", join("<x <", x, " x>")},
		{"not special", one(part{"special": false}), "a<x>b", join("a", x, "b")},
		{"longest", newFile().add("ab", nil).add("abcd", nil), "abcabcdab", join(x, "c", y, x)},
		{"leftmost", newFile().add("bcd", nil).add("ab", nil), "abcd", join(y, "cd")},
		{"longest that ends early", newFile().add("ab", nil).add("abcde", nil), "abcdab", join(x, "cd", x)},
		{"several first letters", newFile().add("éa", nil).add("本", nil).add("!!", nil), "a本éa!!!", join("a", y, x, z, "!")},
		{"normalized comes second", newFile().add("ab", part{"normalized": true}).add("bc", nil), "abc ab", join("a", y, " ", x)},

		{"lstrip", one(part{"lstrip": true}), "a \u3000\n<x> b", join("a", x, " b")},
		{"lstrip at the start", one(part{"lstrip": true}), "  <x>", join(x)},
		{"rstrip", one(part{"rstrip": true}), "a <x> \t\u00a0b", join("a ", x, "b")},
		{"rstrip to the end", one(part{"rstrip": true}), "<x>  ", join(x)},
		{"both, adjacent", one(part{"lstrip": true, "rstrip": true}), " <x>  <x> ", join(x, x)},
		{"rstrip over a token of white space", newFile().add("<x>", part{"rstrip": true}).add("\n", nil), "<x>\n\n  a", join(x, y, y, "  a")},
		{"white space that strips", newFile().add("\n", part{"rstrip": true}), "a\n\n b", join("a", x, x, "b")},

		{"single word", one(part{"single_word": true}), "<x> a<x> <x>b .<x>.", join(x, " a<x> <x>b .", x, ".")},
		{"single word beside marks", newFile().add("xy", part{"single_word": true}), "xy\u0301 xy_ xyⅧ xyⓐ xy\u200d xy- xy", join("xy\u0301 xy_ xyⅧ xyⓐ xy\u200d ", x, "- ", x)},
		{"single word is passed over whole", newFile().add("abab", part{"single_word": true}).add("ab", nil), "ababx ab", join("ababx ", y)},
		{"single word after a token", newFile().add("xy", part{"single_word": true, "normalized": true}).add("<y>", nil), "a<y>xy", join("a", y, x)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.file.parse(t).Encode(c.text, false); !slices.Equal(got, c.want) {
				t.Errorf("Encode(%q)\n got %v\nwant %v", c.text, got, c.want)
			}
		})
	}
}

// A stretch between added tokens is a text of its own: what looks ahead sees its end.
func TestAddedTokensEndTheText(t *testing.T) {
	tok := openFable(t)
	want := append(append(tok.Encode("a  ", false), 4094), tok.Encode("b", false)...)
	if got := tok.Encode("a  <|end_of_text|>b", false); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Each of a million line breaks swallows all those behind it.
func TestStrippingIsLinear(t *testing.T) {
	tok := newFile().add("\n", part{"rstrip": true, "lstrip": true}).parse(t)
	if got := tok.Encode(strings.Repeat("\n", 1_000_000), false); len(got) != 1_000_000 {
		t.Errorf("%d ids", len(got))
	}
}

func TestPrefixSpace(t *testing.T) {
	f := newFile()
	f["pre_tokenizer"] = part{"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}
	f.add("<x>", nil)
	tok := f.parse(t)
	for _, c := range []struct{ text, want string }{{"", ""}, {"a", " a"}, {" a", " a"}, {"\na", " \na"}} {
		if got := tok.Decode(tok.Encode(c.text, false), false); got != c.want {
			t.Errorf("%q is encoded as %q, want %q", c.text, got, c.want)
		}
	}
	// Each stretch of text gets one, and behind a Split each piece.
	if got := tok.Decode(tok.Encode("a<x>b c", false), true); got != " a b c" {
		t.Errorf("got %q", got)
	}
	f["pre_tokenizer"] = part{"type": "Sequence", "pretokenizers": []part{
		{"type": "Split", "pattern": part{"Regex": `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`}, "behavior": "Removed", "invert": true},
		{"type": "ByteLevel", "add_prefix_space": true, "use_regex": false},
	}}
	tok = f.parse(t)
	if got := tok.Decode(tok.Encode("a1 b", false), true); got != " a 1 b" {
		t.Errorf("got %q", got)
	}
}
