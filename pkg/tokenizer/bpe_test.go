package tokenizer_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// naive merges as the definition says: find the pair of lowest rank in all of the
// word, the leftmost of several, merge that one, begin again.
func naive(word string, merges [][2]string) []string {
	rank := make(map[[2]string]int)
	for i, m := range merges {
		rank[m] = i
	}
	symbols := strings.Split(word, "")
	for {
		best, at := len(merges), -1
		for i := 0; i+1 < len(symbols); i++ {
			if r, ok := rank[[2]string{symbols[i], symbols[i+1]}]; ok && r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return symbols
		}
		symbols = slices.Replace(symbols, at, at+2, symbols[at]+symbols[at+1])
	}
}

// randomMerges are merges over a small alphabet, in any order: a merge of long parts
// may rank before those that make its parts, and several may make the same token.
func randomMerges(r *rand.Rand) [][2]string {
	tokens := []string{"a", "b", "c"}
	var merges [][2]string
	for range 1 + r.IntN(40) {
		m := [2]string{tokens[r.IntN(len(tokens))], tokens[r.IntN(len(tokens))]}
		if len(m[0]+m[1]) > 12 || slices.Contains(merges, m) {
			continue
		}
		merges = append(merges, m)
		if !slices.Contains(tokens, m[0]+m[1]) {
			tokens = append(tokens, m[0]+m[1])
		}
	}
	if r.IntN(2) == 0 {
		r.Shuffle(len(merges), func(i, j int) { merges[i], merges[j] = merges[j], merges[i] })
	}
	return merges
}

func TestMergesAgreeWithTheDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		merges := randomMerges(r)
		tok := newFile(merges...).parse(t)
		for range 20 {
			// Both ways of merging, and both sides of where one ends.
			word := draw(r, []string{"a", "b", "c"}, 1+r.IntN(3*tokenizer.ShortPiece))
			want := []int32{}
			for _, symbol := range naive(word, merges) {
				id, ok := tok.TokenID(symbol)
				if !ok {
					t.Fatalf("no token %q", symbol)
				}
				want = append(want, id)
			}
			if got := tok.Encode(word, false); !slices.Equal(got, want) {
				t.Fatalf("merges %q of %q\n got %v\nwant %v", merges, word, got, want)
			}
		}
	}
}

func TestMergesInEitherSpelling(t *testing.T) {
	f := newFile([2]string{"a", " "}, [2]string{"a ", "b"})
	pairs := f.parse(t)
	f.model()["merges"] = []string{"#version: 0.2", "a Ġ", "aĠ b"}
	lines := f.parse(t)
	const text = "aa bb a b"
	if a, b := pairs.Encode(text, false), lines.Encode(text, false); !slices.Equal(a, b) || len(a) != 5 {
		t.Errorf("%v as pairs, %v as lines", a, b)
	}
}

func TestLastOfTwoEqualMergesCounts(t *testing.T) {
	tok := newFile([2]string{"a", "b"}, [2]string{"b", "c"}, [2]string{"a", "b"}).parse(t)
	want, _ := tok.TokenID("bc")
	if got := tok.Encode("abc", false); !slices.Equal(got, []int32{'a', want}) {
		t.Errorf("got %v", got)
	}
}

func TestIgnoreMerges(t *testing.T) {
	f := newFile([2]string{"b", "c"})
	vocab := f.model()["vocab"].(part)
	vocab["abc"], vocab["a b"] = 300, 301
	if got := f.parse(t).Encode("abc", false); !slices.Equal(got, []int32{'a', 256}) {
		t.Errorf("by merges: %v", got)
	}
	f.model()["ignore_merges"] = true
	tok := f.parse(t)
	if got := tok.Encode("abc", false); !slices.Equal(got, []int32{300}) {
		t.Errorf("whole: %v", got)
	}
	// A token that the byte alphabet cannot spell is never the whole piece.
	if got := tok.Encode("a b", false); !slices.Equal(got, []int32{'a', ' ', 'b'}) {
		t.Errorf("outside the alphabet: %v", got)
	}
}

// Two million letters without a place to cut. What would be quadratic takes days.
func TestHugePiece(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some 50 MB")
	}
	tok := newFile([2]string{"a", "a"}, [2]string{"aa", "aa"}, [2]string{"aaaa", "aaaa"}).parse(t)
	const length = 2_000_000
	began := time.Now()
	got := tok.Encode(strings.Repeat("a", length), false)
	if len(got) != length/8 {
		t.Errorf("%d tokens, want %d", len(got), length/8)
	}
	t.Logf("%d bytes in %v", length, time.Since(began))
}
