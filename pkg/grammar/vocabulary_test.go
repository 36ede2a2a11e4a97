package grammar_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
)

// eos is the id of the token that ends outputs in vocabularies of tests.
const eos = 0

// texts are the tokens of a small vocabulary: each byte, what JSON is made of, and pieces of
// words, some of which end within a character.
func texts() [][]byte {
	out := [][]byte{eos: nil}
	for b := range 256 {
		out = append(out, []byte{byte(b)})
	}
	for _, text := range []string{
		`{"`, `":`, `": `, `",`, `", "`, `"}`, `"}]`, `":{"`, `[{"`, `},{"`, `}}`, "\n  ", "\n", `,"`, `, "`, `: "`, `""`, `"",`, `"]`, `]}`,
		"true", "false", "null", "tr", "ue", "fal", "12", "123", "-1", "0.", ".5", "e+", "1e", "00", "name", "na", "age", "the", " the", "ab", "abc",
		`\n`, `\"`, `\u`, `\u00`, "00e9", "é", "日本", "日\xe6", "\x9c\xac", `a","b`, `foo":`, `"foo":1`, "zz\\", "2024-", "-02-", "T1",
	} {
		out = append(out, []byte(text))
	}
	return out
}

func vocabulary(t testing.TB, texts [][]byte) *grammar.Vocabulary {
	t.Helper()
	v, err := grammar.NewVocabulary(len(texts), func(id int32) []byte { return texts[id] })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func allowed(mask []uint64, id int32) bool {
	return int(id>>6) < len(mask) && mask[id>>6]&(1<<(id&63)) != 0
}

// walk draws tokens at random among those that are allowed until the output ends or has so many.
// Tokens that lead out of strings and the like are drawn more often, so that outputs end.
func walk(t *testing.T, form *grammar.Grammar, texts [][]byte, r *rand.Rand, most int) (out []byte, tokens []int32, ended bool) {
	t.Helper()
	c := form.Constrain([]int32{eos})
	for len(tokens) < most {
		mask := c.Allowed(tokens)
		var ids []int32
		for id := range int32(len(texts)) {
			if allowed(mask, id) {
				ids = append(ids, id)
				if id == eos || strings.ContainsAny(string(texts[id]), `"]}`) {
					for range 40 {
						ids = append(ids, id)
					}
				}
			}
		}
		if len(ids) == 0 {
			t.Fatalf("no token is allowed after %q", out)
		}
		id := ids[r.IntN(len(ids))]
		if id == eos {
			return out, tokens, true
		}
		tokens = append(tokens, id)
		out = append(out, texts[id]...)
	}
	return out, tokens, false
}

// checkMask holds a mask against what comes of trying each token.
func checkMask(t *testing.T, form *grammar.Grammar, texts [][]byte, so []byte, mask []uint64) {
	t.Helper()
	for id := range int32(len(texts)) {
		if id == eos {
			if want := form.Accepts(so); allowed(mask, id) != want {
				t.Fatalf("after %q the end is allowed: %v", so, !want)
			}
			continue
		}
		if want := form.Begins(append(so[:len(so):len(so)], texts[id]...)); allowed(mask, id) != want {
			t.Fatalf("after %q, %q is allowed: %v", so, texts[id], !want)
		}
	}
}
