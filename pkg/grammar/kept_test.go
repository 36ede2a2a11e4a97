package grammar_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
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
