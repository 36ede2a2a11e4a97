package tokenizer_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/longtest"
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
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
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
			if heap, queues := tok.MergeInEachWay(word); !slices.Equal(heap, want) || !slices.Equal(queues, want) {
				t.Fatalf("merges %q of %q\n got %v\n and %v\nwant %v", merges, word, heap, queues, want)
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

// Pieces so long that each rank has a queue: the result is the heap's.
func TestLongPieces(t *testing.T) {
	longtest.OneGoroutine(t)
	r := rand.New(rand.NewPCG(7, 8))
	for range 12 {
		merges := randomMerges(r)
		tok := newFile(merges...).parse(t)
		word := draw(r, []string{"a", "a", "a", "b", "c"}, tokenizer.LongPiece+r.IntN(1000))
		want, _ := tok.MergeInEachWay(word)
		if got := tok.Encode(word, false); !slices.Equal(got, want) {
			t.Fatalf("merges %q: %d tokens, want %d", merges, len(got), len(want))
		}
	}
	fable := openFable(t)
	for _, word := range []string{strings.Repeat("once", 20_000), strings.Repeat("princess", 10_000), strings.Repeat(" ", 50_000)} {
		want, _ := fable.MergeInEachWay(word)
		if got := fable.Encode(word, false); !slices.Equal(got, want) {
			t.Errorf("%.8q: %d tokens, want %d", word, len(got), len(want))
		}
	}
}

// Hundreds of thousands of characters without a place to cut, by bytes and by characters, with a
// pre-tokenizer and without. What would be quadratic takes hours.
func TestHugePieces(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	powers := [][2]string{{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}
	const length = 400_000
	for name, tok := range map[string]*tokenizer.Tokenizer{
		"powers": newFile(powers...).parse(t), "fable": openFable(t),
		"words": readSentencePiece(t, "words").parse(t), "digits": readSentencePiece(t, "digits").parse(t),
	} {
		for _, unit := range []string{"a", " ", "▁", "1", "é", "日", "👍", "e\u0301", "ab c", "\n", "\u0301"} {
			text := strings.Repeat(unit, length/len(unit))
			began := time.Now()
			ids := tok.Encode(text, false)
			spent := time.Since(began)
			if len(ids) == 0 || len(ids) > length+1 {
				t.Errorf("%s: %d times %q is %d tokens", name, length/len(unit), unit, len(ids))
			}
			if name == "powers" && unit == "a" && len(ids) != length/8 {
				t.Errorf("%d tokens, want %d", len(ids), length/8)
			}
			t.Logf("%s, %q: %d tokens, %v", name, unit, len(ids), spent)
		}
	}
}
