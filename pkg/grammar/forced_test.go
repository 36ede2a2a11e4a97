package grammar_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func TestForced(t *testing.T) {
	all := texts()
	v := vocabulary(t, all)
	ids := func(texts []string) (out []int32) {
		for _, text := range texts {
			out = append(out, int32(slices.IndexFunc(all, func(b []byte) bool { return string(b) == text })))
		}
		return out
	}
	choice := func(texts ...string) *inferencev1.StructuredOutput {
		return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: texts}}}
	}
	person := schema(`{"type":"object","properties":{"name":{"type":"string"},"the age":{"type":"integer"}},"required":["name","the age"],"additionalProperties":false}`)
	for _, c := range []struct {
		source *inferencev1.StructuredOutput
		so     []string
		most   int
		want   []string
		open   bool
	}{
		{expression("xyz!"), nil, 8, []string{"x", "y", "z", "!"}, false},
		{expression("xyz!"), []string{"x"}, 2, []string{"y", "z"}, false},
		{expression("xyz!"), nil, 0, nil, false},
		{expression("xy?z"), nil, 8, []string{"x"}, true},
		{expression("xabc"), nil, 8, []string{"x", "abc"}, false},
		{expression("xab[cd]"), nil, 8, []string{"x", "ab"}, true},
		{expression("xy(z!)?"), nil, 8, []string{"x", "y"}, true},
		{expression("xyz"), []string{"x", "y", "z"}, 8, nil, false},
		{expression("xyz"), []string{"q"}, 8, nil, false},
		{expression("[a-z]*"), nil, 8, nil, false},
		{expression("2024-x"), nil, 1, []string{"2024-"}, false},
		{choice("QRS", "QRT!"), nil, 8, []string{"Q", "R"}, true},
		{person, []string{`{"`}, 8, []string{"name", `":`}, true},
		{person, []string{`{"`, "na"}, 8, []string{"m", "e", `":`}, true},
		{person, []string{`{"`, "name", `":`, `"`, "ab", `"`}, 8, []string{","}, true},
		{person, []string{`{"`, "name", `":`, `"`, "ab", `", "`}, 2, []string{"the", " "}, false},
	} {
		form, err := grammar.Compile(t.Context(), c.source, v)
		if err != nil {
			t.Fatal(err)
		}
		got, open := form.Constrain([]int32{eos}).Forced(ids(c.so), c.most)
		if !slices.Equal(got, ids(c.want)) || open != c.open {
			t.Errorf("%v after %q: %v, open %v; want %v %v", c.source, c.so, got, open, ids(c.want), c.open)
		}
	}
}

// What is forced is what masks say of the tokens of a byte each, in the longest tokens.
func TestForcedByMasks(t *testing.T) {
	all := texts()
	v := vocabulary(t, all)
	const most = 4
	forced := 0
	for name, text := range schemas {
		form, err := grammar.Compile(t.Context(), schema(text), v)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range 3 {
			_, tokens, _ := walk(t, form, all, rand.New(rand.NewPCG(uint64(seed), 5)), 40)
			c := form.Constrain([]int32{eos})
			for i := range tokens {
				so := tokens[:i:i]
				got, _ := c.Forced(so, most)
				text := onlyText(form.Constrain([]int32{eos}), so, most*16)
				if want := longestTokens(all, text, most); !slices.Equal(got, want) {
					t.Fatalf("%s: after %v %v are forced, and %v by the masks: %q", name, so, got, want, text)
				}
				forced += len(got)
			}
		}
	}
	if forced < 100 {
		t.Errorf("only %d tokens were forced", forced)
	}
}

// onlyText is what has to come after some tokens, byte by byte.
func onlyText(c *grammar.Constraint, so []int32, most int) (text []byte) {
	for len(text) < most {
		mask := c.Allowed(so)
		only := int32(-1)
		for b := range int32(256) {
			switch {
			case !allowed(mask, b+1):
			case only >= 0:
				return text
			default:
				only = b
			}
		}
		if only < 0 || allowed(mask, eos) {
			return text
		}
		text, so = append(text, byte(only)), append(so, only+1)
	}
	return text
}

func longestTokens(all [][]byte, text []byte, most int) (tokens []int32) {
	for len(text) > 0 && len(tokens) < most {
		best := -1
		for id, token := range all {
			if len(token) > 0 && bytes.HasPrefix(text, token) && (best < 0 || len(token) > len(all[best])) {
				best = id
			}
		}
		tokens, text = append(tokens, int32(best)), text[len(all[best]):]
	}
	return tokens
}

// What is forced is not looked for while the work of a step is done, nor once that of the output is.
func TestForcedWithinTheBudget(t *testing.T) {
	form, err := grammar.Compile(t.Context(), expression("xyz"), vocabulary(t, texts()))
	if err != nil {
		t.Fatal(err)
	}
	budget := new(grammar.Budget)
	c := form.Constrain([]int32{eos})
	c.Within(budget, -1)
	if forced, _ := c.Forced(nil, 8); forced != nil {
		t.Errorf("%v are forced, with an empty budget", forced)
	}
	budget.Refill()
	if forced, _ := c.Forced(nil, 8); len(forced) != 3 {
		t.Errorf("%v are forced", forced)
	}
}
