package grammar_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// A form whose automata have a state for nearly every text ends its own outputs, and not those of
// others: finding its tokens takes too long.
func TestTooMuchWork(t *testing.T) {
	longtest.OneGoroutine(t)
	all := [][]byte{eos: nil}
	for n := 1; n <= 14; n++ {
		for word := range 1 << n {
			text := make([]byte, n)
			for i := range text {
				text[i] = "ab"[word>>i&1]
			}
			all = append(all, text)
		}
	}
	v := vocabulary(t, all)
	hard, err := grammar.Compile(t.Context(), expression("[ab]*a[ab]{1000}|[ab]*b[ab]{1000}c"), v)
	if err != nil {
		t.Fatal(err)
	}
	easy, err := grammar.Compile(t.Context(), expression("[ab]*"), v)
	if err != nil {
		t.Fatal(err)
	}
	var so []int32
	for range 100 {
		so = append(so, int32(len(all)-7)) // of 14 bytes
	}
	c := hard.Constrain([]int32{eos})
	if mask := c.Allowed(nil); !allowed(mask, 1) || allowed(mask, eos) {
		t.Error("the hard form does not begin")
	}
	for range 2 {
		if mask := c.Allowed(so); mask != nil {
			t.Error("a mask was found that takes too long")
		}
		if forced, _ := c.Forced(so, 3); forced != nil {
			t.Errorf("%v are forced", forced)
		}
		if mask := easy.Constrain([]int32{eos}).Allowed(so); !allowed(mask, 1) || !allowed(mask, eos) {
			t.Error("the easy form ends")
		}
	}
}

// Places that differ by a count have masks that are told by trying each token, where words of one
// class are taken together, also at the end of the count and where the expression ends.
func TestCountedClasses(t *testing.T) {
	all := texts()
	for _, text := range []string{"abcdefgh", "hgfedcba", "ab-cd", "ab.cd", "12ab", "ab!", "abc!de", "a!!", "dd", "ddd!d", "ABC", "Abc-"} {
		all = append(all, []byte(text))
	}
	v := vocabulary(t, all)
	for _, source := range []string{"[a-z0-9]{1,12}(-[a-z]{2,9})?", "([a-h]{1,5}!){1,3}", "[a-d]{3}[b-z]{0,7}(!|!!)?", "[^!]{2,9}!", "(?:[a-z]+[.-]){2}[0-9]*"} {
		form, err := grammar.Compile(t.Context(), expression(source), v)
		if err != nil {
			t.Fatal(err)
		}
		for _, so := range []string{"", "a", "ab", "abc", "abcd", "abcdefg", "abcdefgh", "abcdefghab", "abcdefghabcd", "ab-", "ab-c", "abc!", "ab!cd", "ab!cd!e", "ab.c", "ab.cd-1"} {
			if !form.Begins([]byte(so)) {
				continue
			}
			var tokens []int32
			for i := range len(so) {
				tokens = append(tokens, int32(so[i])+1) // each byte is a token
			}
			checkMask(t, form, all, []byte(so), form.Constrain([]int32{eos}).Allowed(tokens))
		}
	}
}

// laborious is a form whose places are all new, and the last of 4,096 tokens of twelve bytes that it may have.
func laborious(t *testing.T) (form *grammar.Grammar, last int32) {
	t.Helper()
	all := [][]byte{eos: nil}
	for n := 1; n <= 12; n++ {
		for word := range 1 << n {
			text := make([]byte, n)
			for i := range text {
				text[i] = "ab"[word>>i&1]
			}
			all = append(all, text)
		}
	}
	form, err := grammar.Compile(t.Context(), expression("[ab]*a[ab]{25}"), vocabulary(t, all))
	if err != nil {
		t.Fatal(err)
	}
	return form, int32(len(all) - 1)
}

// The work for one output is bounded: one whose places are all new ends, and others with the same
// form go on.
func TestTooMuchWorkForOneOutput(t *testing.T) {
	longtest.OneGoroutine(t)
	form, last := laborious(t)
	r := rand.New(rand.NewPCG(3, 3))
	c := form.Constrain([]int32{eos})
	var so []int32
	for len(so) < 1000 && c.Allowed(so) != nil {
		so = append(so, last-int32(r.IntN(1<<12)))
	}
	if len(so) < 10 || len(so) == 1000 || !c.OutOfEffort() {
		t.Errorf("an output goes on for %d tokens", len(so))
	}
	other := form.Constrain([]int32{eos})
	if mask := other.Allowed(so[:5]); !allowed(mask, 1) || other.OutOfEffort() {
		t.Error("another output ends")
	}
}

// Wrong drafts of an output do not use up its work, only that for drafts.
func TestTooMuchWorkForDrafts(t *testing.T) {
	longtest.OneGoroutine(t)
	form, last := laborious(t)
	r := rand.New(rand.NewPCG(3, 4))
	c := form.Constrain([]int32{eos})
	draft := &engine.Sample{Constraint: c}
	var so []int32
	for range 1000 {
		if so = append(so, last-int32(r.IntN(1<<12))); draft.DraftConstraint().Allowed(so) == nil {
			break
		}
	}
	if len(so) == 1000 {
		t.Error("drafts go on for ever")
	}
	if mask := c.Allowed([]int32{last}); !allowed(mask, 1) || c.OutOfEffort() {
		t.Error("drafts end the output")
	}
}
