package grammar_test

import (
	"math/rand/v2"
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
