package grammar_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// randomGrammar is a grammar whose rules call one another and themselves, behind and before other
// things, so that tokens get into calls and out of several at once.
func randomGrammar(r *rand.Rand) string {
	const rules = 5
	literal := func() string {
		return []string{`"a"`, `"ab"`, `"("`, `")"`, `"["`, `"]"`, `","`, `", "`, `"b)"`, `"xyz"`, `[a-d]`, `[ab]+`, `[a-z]{1,4}`, `[^a()]`, `[0-9]{2,9}`, `("a" | "bc")*`, `[a-z]+`, `[^()]*`}[r.IntN(18)]
	}
	var alternative func(depth int) string
	alternative = func(depth int) string {
		parts := []string{literal()}
		for range r.IntN(4) {
			switch n := r.IntN(8); {
			case n < 3:
				parts = append(parts, fmt.Sprintf("r%d", r.IntN(rules)))
			case n < 4 && depth < 2:
				parts = append(parts, "("+alternative(depth+1)+" | "+alternative(depth+1)+")"+[]string{"", "?", "*", "{1,3}"}[r.IntN(4)])
			default:
				parts = append(parts, literal())
			}
		}
		return strings.Join(parts, " ")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "root ::= r0 | %s\n", alternative(0))
	for i := range rules {
		fmt.Fprintf(&out, "r%d ::= %s | %s\n", i, alternative(0), []string{`"x"`, `[0-9]`, alternative(0), `""`}[r.IntN(4)])
	}
	return out.String()
}

// randomTexts are tokens of what randomGrammar writes.
func randomTexts(r *rand.Rand) [][]byte {
	out := [][]byte{eos: nil}
	for b := range byte(128) {
		out = append(out, []byte{b})
	}
	seen := map[string]bool{}
	for range 300 {
		var text strings.Builder
		for range 2 + r.IntN(6) {
			text.WriteString([]string{"a", "b", "c", "ab", "(", ")", "))", "[", "]", ",", ", ", "b)", "xyz", "1", "23"}[r.IntN(15)])
		}
		if !seen[text.String()] {
			seen[text.String()] = true
			out = append(out, []byte(text.String()))
		}
	}
	return out
}

// Masks are what trying each token gives, in random grammars and vocabularies, whether what they
// are made of is known from other places or not.
func TestMasksOfRandomGrammars(t *testing.T) {
	longtest.OneGoroutine(t)
	compiled, masks := 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 21))
		text := randomGrammar(r)
		all := randomTexts(r)
		v := vocabulary(t, all)
		form, err := grammar.Compile(t.Context(), gbnf(text), v)
		if err != nil {
			continue // such as one that nothing matches
		}
		compiled++
		for range 4 {
			c := form.Constrain([]int32{eos})
			var so []byte
			var tokens []int32
			for len(tokens) < 25 {
				mask := c.Allowed(tokens)
				if mask == nil {
					break // too many readings
				}
				checkMask(t, form, all, so, mask)
				masks++
				var ids []int32
				for id := range int32(len(all)) {
					if id != eos && allowed(mask, id) {
						ids = append(ids, id)
					}
				}
				if len(ids) == 0 {
					break
				}
				id := ids[r.IntN(len(ids))]
				tokens, so = append(tokens, id), append(so, all[id]...)
			}
		}
	}
	if compiled < 50 || masks < 2000 {
		t.Errorf("%d grammars were compiled, %d masks looked at", compiled, masks)
	}
}

// Calls end at the same depth whether what they do is known from elsewhere or not.
func TestMasksWhereCallsAreDeep(t *testing.T) {
	longtest.OneGoroutine(t)
	all := texts()
	for _, text := range []string{"[[[[", "[[[[[[[[[[[[[[[[", `{"a":{"a":{"a":`, `[{"a":[`, "]]]]]]", "}}}", `[[1],[`, `]},{"a":[[`, "((((", "))))", "((((((((", "1]", "1,", "a(", "(a", "a(a(a("} {
		all = append(all, []byte(text))
	}
	v := vocabulary(t, all)
	anything := &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
	for _, c := range []struct {
		form          *inferencev1.StructuredOutput
		before, again string
	}{
		{anything, `{"a":`, "["},
		{gbnf("root ::= a\na ::= b \".\" | \"x\"\nb ::= c \",\" | \"y\"\nc ::= \"(\" a \")\""), "", "("},
		{gbnf("root ::= [a-z]+ \"(\" root \")\" | \"x\""), "", "a("},
	} {
		checkDeepMasks(t, c.form, v, all, c.before, c.again)
	}
}

// Calls end at the same depth in random grammars, whose calls begin and end with words.
func TestMasksOfRandomGrammarsWhereCallsAreDeep(t *testing.T) {
	longtest.OneGoroutine(t)
	r := rand.New(rand.NewPCG(3, 22))
	all := append(randomTexts(r), []byte("ab("), []byte("ab(ab("), []byte("ab(a"), []byte("a(ab("), []byte("b)),a"), []byte("a),b"))
	v := vocabulary(t, all)
	for range 20 {
		one := func(of ...string) string { return of[r.IntN(len(of))] }
		word := func() string {
			return one("[a-z]+", "[a-z]*", "[a-z]{1,4}", "[0-9a-z]{2,9}", "[^()]+", `[a-z]+ [0-9a-z]*`, `([a-z] | "xyz")+`)
		}
		behind := func() string { return one("", word(), "("+word()+")?", `("," `+word()+")*", `"," r1`) }
		text := fmt.Sprintf("root ::= r0 | %s\nr0 ::= %s \"(\" %s \")\" %s\nr1 ::= root %s | %s", word(), word(), one("root", "r1", `(r1 | "()")`), behind(), behind(), word())
		checkDeepMasks(t, gbnf(text), v, all, "", "ab(")
	}
}

// checkDeepMasks checks masks of a form after a text that is repeated until calls would be too deep.
func checkDeepMasks(t *testing.T, source *inferencev1.StructuredOutput, v *grammar.Vocabulary, all [][]byte, before, again string) {
	t.Helper()
	form, err := grammar.Compile(t.Context(), source, v)
	if err != nil {
		t.Fatalf("%v: %v", source, err)
	}
	constraint := form.Constrain([]int32{eos})
	var tokens []int32
	var so []byte
	add := func(text string) {
		for i := range len(text) { // each byte is a token
			tokens = append(tokens, 1+int32(text[i]))
		}
		so = append(so, text...)
	}
	add(before)
	deep := 0
	for ; deep <= 2*grammar.MaxDepth && form.Begins(so); deep++ {
		if deep < 4 || deep > 20 && deep < 24 || deep*3 > grammar.MaxDepth-60 {
			checkMask(t, form, all, so, constraint.Allowed(tokens))
		}
		add(again)
	}
	if deep < grammar.MaxDepth/4 || deep > grammar.MaxDepth+1 {
		t.Errorf("%v: calls are at most %d deep", source, deep)
	}
}
