package tokenizer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// pieces makes the pieces that a pre-tokenizer cuts visible: a vocabulary in which
// everything merges with ignore_merges, so that each piece is one token.
func pieces(t *testing.T, preTokenizer any, text string, want []string) []string {
	t.Helper()
	vocab := part{"<unk>": 0}
	for _, piece := range want {
		if _, ok := vocab[piece]; !ok && piece != "<x>" {
			vocab[piece] = len(vocab)
		}
	}
	f := file{
		"pre_tokenizer": preTokenizer, "added_tokens": []part{},
		"decoder": part{"type": "Fuse"},
		"model":   part{"type": "BPE", "vocab": vocab, "merges": []any{}, "unk_token": "<unk>", "ignore_merges": true, "fuse_unk": true},
	}
	f.add("<x>", nil)
	tok := f.parse(t)
	got := []string{}
	for _, id := range tok.Encode(text, false) {
		got = append(got, string(tok.TokenBytes(id)))
	}
	return got
}

func TestPreTokenizers(t *testing.T) {
	split := func(pattern, behavior string, invert bool) part {
		return part{"type": "Split", "pattern": part{"String": pattern}, "behavior": behavior, "invert": invert}
	}
	metaspace := func(scheme string, splits bool) part {
		return part{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}
	}
	// A regular expression that matches everywhere.
	everywhere := func(behavior string, invert bool) part {
		return part{"type": "Split", "pattern": part{"Regex": tokenizer.Patterns[3]}, "behavior": behavior, "invert": invert}
	}
	for _, c := range []struct {
		name string
		pre  part
		text string
		want string // pieces between bars
	}{
		{"removed", split("-", "Removed", false), "the-final--countdown", "the|final|countdown"},
		{"isolated", split("-", "Isolated", false), "the-final--countdown", "the|-|final|-|-|countdown"},
		{"merged with previous", split("-", "MergedWithPrevious", false), "-the-final--countdown-", "-|the-|final-|-|countdown-"},
		{"merged with next", split("-", "MergedWithNext", false), "-the-final--countdown-", "-the|-final|-|-countdown|-"},
		{"contiguous", split("-", "Contiguous", false), "--the-final--countdown", "--|the|-|final|--|countdown"},
		{"removed, inverted", split("-", "Removed", true), "the-final--countdown", "-|-|-"},
		{"merged with next, inverted", split("-", "MergedWithNext", true), "a-b--c", "a-|b-|-|c"},
		{"merged with previous, inverted", split("-", "MergedWithPrevious", true), "a-b--c", "a|-b|-|-c"},
		{"contiguous, inverted", split("-", "Contiguous", true), "a-b--c", "a|-|b|--|c"},
		{"of several characters", split("aa", "Isolated", false), "aaaab", "aa|aa|b"},
		{"nothing found", split("-", "Removed", false), "abc", "abc"},
		{"nothing else", split("a", "Removed", false), "aaa", ""},
		{"everywhere, contiguous", everywhere("Contiguous", false), "a b c", "a b c"},
		{"everywhere, contiguous and inverted", everywhere("Contiguous", true), "a b c", "a b c"},
		{"everywhere, merged with previous", everywhere("MergedWithPrevious", false), "a b c", "a| b| c"},
		{"everywhere, merged with next and inverted", everywhere("MergedWithNext", true), "a b c", "a| b| c"},
		{"everywhere, removed", everywhere("Removed", false), "a b c", ""},
		{"Gemma's", split(" ", "MergedWithPrevious", false), "a b  c", "a |b | |c"},

		{"digits", part{"type": "Digits", "individual_digits": false}, "ab123٢c4", "ab|123٢|c|4"},
		{"individual digits", part{"type": "Digits", "individual_digits": true}, "ab12½c", "ab|1|2|½|c"},

		{"Metaspace", metaspace("always", true), "Hey  friend!", "▁Hey|▁|▁friend!"},
		{"Metaspace before a space", metaspace("always", true), " Hey", "▁Hey"},
		{"Metaspace never", metaspace("never", true), "Hey friend ", "Hey|▁friend|▁"},
		{"Metaspace whole", metaspace("always", false), "Hey friend", "▁Hey▁friend"},
		{"Metaspace always, behind a token", metaspace("always", true), "a<x>b", "▁a|<x>|▁b"},
		{"Metaspace first, behind a token", metaspace("first", true), "a<x>b c", "▁a|<x>|b|▁c"},
		{"Metaspace first, a token first", metaspace("first", true), "<x>b", "<x>|b"},
		{"Metaspace of old files", part{"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": true}, "a b", "▁a|▁b"},
		{"Metaspace of old files, none", part{"type": "Metaspace", "replacement": "▁", "add_prefix_space": false}, "a b", "a|▁b"},
		{"first after a Split", part{"type": "Sequence", "pretokenizers": []part{split("-", "Isolated", false), metaspace("first", true)}}, "a-a", "▁a|-|a"},
		{"always after a Split", part{"type": "Sequence", "pretokenizers": []part{split("-", "Removed", false), metaspace("always", true)}}, "a-b", "▁a|▁b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := strings.Split(c.want, "|")
			if c.want == "" {
				want = []string{}
			}
			if got := pieces(t, c.pre, c.text, want); !slices.Equal(got, want) {
				t.Errorf("%q is cut to %q, want %q", c.text, got, want)
			}
		})
	}
}
