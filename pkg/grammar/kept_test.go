package grammar_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/grammar/grammartest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// However many long strings there are, few of the states that they went through are kept.
func TestStatesOfStringsAreForgotten(t *testing.T) {
	longtest.OneGoroutine(t)
	g, err := grammar.Compile(t.Context(), schema(`{"type":"string","maxLength":20000}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", " ", "é", "語", `\n`, `\u00e9`}
	for range 12 {
		var text strings.Builder
		text.WriteByte('"')
		for range 20000 {
			text.WriteString(letters[r.IntN(len(letters))])
		}
		if !g.Accepts([]byte(text.String() + `"`)) {
			t.Error("a string of the longest is not accepted")
		}
		if g.Accepts([]byte(text.String() + `a"`)) {
			t.Error("a longer string is accepted")
		}
	}
	if n := g.States(); n > 50_000 {
		t.Errorf("%d states are kept", n)
	}
}

// A cache knows many sources that it only checks.
func TestManySourcesAreCheckedOnce(t *testing.T) {
	c := grammar.NewCache(nil)
	source := func(i int) *inferencev1.StructuredOutput { return expression(fmt.Sprintf("b{%d}", i+1)) }
	for i := range 100 {
		if _, err := c.Get(t.Context(), source(i)); err != nil {
			t.Fatal(err)
		}
	}
	grammartest.Fill(t, c) // whatever has to be compiled is refused now
	for i := range 100 {
		if _, err := c.Get(t.Context(), source(i)); err != nil {
			t.Fatalf("source %d: %v", i, err)
		}
	}
}

// getter returns a function that gets the grammar of an expression from a cache.
func getter(t *testing.T, c *grammar.Cache) func(text string) *grammar.Grammar {
	return func(text string) *grammar.Grammar {
		t.Helper()
		g, err := c.Get(t.Context(), expression(text))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
}

// Grammars grow with the masks that they keep, and a cache keeps those that were used last as far as
// they fit.
func TestCacheIsBoundedBySize(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	get := getter(t, c)
	first, second := get("a+"), get("b+")
	before := first.Size()
	first.Constrain(nil).Allowed([]int32{1 + 'a'})
	if first.Size() <= before {
		t.Errorf("with a mask it takes %d bytes, %d before", first.Size(), before)
	}
	c.SetMost(first.Size() + second.Size() + 4096) // and not as much again for a third
	if get("a+") != first || get("b+") != second {
		t.Error("a grammar is compiled again while all fit")
	}
	get("c+")
	get("d+")
	get("e+")
	if get("a+") == first {
		t.Error("the grammar that was used the longest ago is kept")
	}
	last := get("e+")
	c.SetMost(1)
	if get("e+") != last {
		t.Error("the grammar that was used last is not kept")
	}
}

// What grows past what a cache keeps, with sources that it knows, drops those that were used the
// longest ago.
func TestCacheIsBoundedWhileItsGrammarsGrow(t *testing.T) {
	c := grammar.NewCache(vocabulary(t, texts()))
	get := getter(t, c)
	first, second := get("a{1,9}"), get("[ab]{1,9}")
	c.SetMost(first.Size() + second.Size() + 2048)
	of := first.Constrain(nil)
	for n := range 8 { // places and masks
		of.Allowed(slices.Repeat([]int32{1 + 'a'}, n))
	}
	if get("a{1,9}") != first {
		t.Error("the grammar that was used last is not kept")
	}
	if get("[ab]{1,9}") == second {
		t.Error("both are kept, though one grew")
	}
}

// However long an output is, few of its places are kept, and it goes on where drafts were wrong, or all
// of it is another one.
func TestFewPlacesAreKept(t *testing.T) {
	form, err := grammar.Compile(t.Context(), expression("[ab]*c[ab]{3}"), vocabulary(t, texts()))
	if err != nil {
		t.Fatal(err)
	}
	c := form.Constrain([]int32{eos})
	so := make([]int32, 1000)
	for i := range so {
		so[i] = 1 + 'a' + int32(i%2)
	}
	for n := range so {
		c.Allowed(so[:n])
	}
	if n := c.Places(); n > 200 {
		t.Errorf("%d places are kept of %d tokens", n, len(so))
	}
	for _, back := range []int{1, 10, 63, 500, 1000} {
		other := append(slices.Clone(so[:len(so)-back]), 1+'c', 1+'a')
		got, want := c.Allowed(other), form.Constrain([]int32{eos}).Allowed(other)
		if !slices.Equal(got, want) || !allowed(got, 1+'b') || allowed(got, 1+'c') {
			t.Errorf("%d tokens back another mask comes", back)
		}
		c.Allowed(so)
	}
}
