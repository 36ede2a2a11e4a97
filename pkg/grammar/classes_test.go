package grammar_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// wordy is a vocabulary with words, and its texts.
func wordy(t *testing.T) (*grammar.Vocabulary, [][]byte) {
	t.Helper()
	all := texts()
	for i := range 26 * 26 {
		a, b := byte('a'+i/26), byte('a'+i%26)
		all = append(all, []byte{a, b}, []byte{b, a, b, a}, []byte{a, ')', b}, []byte{a, b, '(', a})
	}
	slices.SortFunc(all[1:], slices.Compare[[]byte])
	all = slices.CompactFunc(all, slices.Equal[[]byte])
	return vocabulary(t, all), all
}

func idOf(all [][]byte, text string) int32 {
	return int32(slices.IndexFunc(all, func(is []byte) bool { return string(is) == text }))
}

// words is a form of words in calls. Its letters are first and those behind it.
func words(first byte) string {
	return fmt.Sprintf("root ::= call | [%[1]c-z]\ncall ::= word \"(\" root \")\" word\nword ::= [%[1]c-z]+", first)
}

// To make a trie of classes is work: the output for which that is done has it, and not the next one, whose
// mask is the same.
func TestClassesAreWork(t *testing.T) {
	v, all := wordy(t)
	var efforts []int
	for range 2 {
		form, err := grammar.Compile(t.Context(), gbnf(words('a')), v)
		if err != nil {
			t.Fatal(err)
		}
		c := form.Constrain([]int32{eos})
		checkMask(t, form, all, nil, c.Allowed(nil))
		efforts = append(efforts, c.Effort())
	}
	if efforts[0] < efforts[1]+len(all)/2 {
		t.Errorf("the first output takes %d, the next one %d", efforts[0], efforts[1])
	}
}

// The tries of classes of a vocabulary are bounded, whatever grammars keep of what they found, and masks are
// the same when a trie is made again.
func TestClassesAreBounded(t *testing.T) {
	v, all := wordy(t)
	type output struct {
		form *grammar.Grammar
		c    *grammar.Constraint
	}
	var outputs []output
	check := func(o output, so string) {
		t.Helper()
		var tokens []int32
		for i := range len(so) {
			tokens = append(tokens, idOf(all, so[i:i+1]))
		}
		checkMask(t, o.form, all, []byte(so), o.c.Allowed(tokens))
	}
	begin := func(first byte) {
		t.Helper()
		form, err := grammar.Compile(t.Context(), gbnf(words(first)), v)
		if err != nil {
			t.Fatal(err)
		}
		o := output{form, form.Constrain([]int32{eos})}
		check(o, "")
		check(o, "z(")
		outputs = append(outputs, o)
	}
	begin('a')
	one := v.ClassBytes()
	v.SetMostClassBytes(4 * one)
	stays := v.WatchClassTrie()
	for first := byte('b'); first < 'r'; first++ {
		begin(first)
		if bytes := v.ClassBytes(); bytes > 6*one {
			t.Fatalf("after %q tries take %d bytes, the first %d", first, bytes, one)
		}
	}
	if runtime.GC(); stays() {
		t.Error("a trie that the vocabulary does not keep stays")
	}
	for _, o := range outputs {
		for _, so := range []string{"zz", "z(z", "z(z)", "z(z)z", "z(z(z)"} {
			check(o, so)
		}
	}
}

// Of too many tries, no more are dropped than have to be: those that alone take too much, then those that
// were not asked for the longest.
func TestWhichClassesAreDropped(t *testing.T) {
	effort := func(v *grammar.Vocabulary, first rune) int {
		form, err := grammar.Compile(t.Context(), gbnf(words(byte(first))), v)
		if err != nil {
			t.Fatal(err)
		}
		c := form.Constrain([]int32{eos})
		c.Allowed(nil)
		return c.Effort()
	}
	keepsAll, _ := wordy(t)
	for name, c := range map[string]struct {
		most  int64  // s takes about 9,000 bytes, m 12,000 and a 21,000, nearly all in one trie of two
		asked string // words of the letters from one on
		made  string // for which of them tries were made
	}{
		"bytes":     {32_000, "mrsmqmsr", "mrs-q--r"},
		"one large": {15_000, "sasas", "sa-a-"},
		"number":    {1 << 20, "abcdefghaiacb", "abcdefgh-i--b"},
	} {
		v, _ := wordy(t)
		v.SetMostClassBytes(c.most)
		var made []rune
		for _, first := range c.asked {
			effort(keepsAll, first)
			if effort(v, first) == effort(keepsAll, first) {
				first = '-'
			}
			made = append(made, first)
		}
		if string(made) != c.made {
			t.Errorf("%s: of %s tries are made for %s, want %s", name, c.asked, string(made), c.made)
		}
	}
}

// What a grammar found counts in its size: what becomes of tokens in calls, and which ones strings cannot
// have that must not be a name.
func TestWhatWasFoundHasASize(t *testing.T) {
	v, all := wordy(t)
	named := schema(`{"properties":{"foo":{}}}`)
	for _, c := range []struct {
		form    *inferencev1.StructuredOutput
		before  []int32
		blocked bool
	}{
		{gbnf(words('a')), nil, false},
		{gbnf("root ::= call | \"x\"\ncall ::= \"(\" root \")\""), nil, false},
		{named, []int32{idOf(all, `{"`)}, true},
	} {
		form, err := grammar.Compile(t.Context(), c.form, v)
		if err != nil {
			t.Fatal(err)
		}
		form.Constrain([]int32{eos}).Allowed(c.before)
		if form.KnownBytes() == 0 || form.Blocked() > 0 != c.blocked {
			t.Errorf("%v: %d bytes and %d tokens are kept", c.form, form.KnownBytes(), form.Blocked())
		}
		if got, want := form.SizeOfFound(), form.KnownBytes()+4*form.Blocked(); got < want {
			t.Errorf("%v: its size has %d bytes of %d", c.form, got, want)
		}
	}
}
