package grammar_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Masks that are made beside the draws, by another goroutine, are those of draws alone.
func TestPrepare(t *testing.T) {
	all := texts()
	v := vocabulary(t, all)
	for name, text := range schemas {
		alone, err := grammar.Compile(t.Context(), schema(text), v)
		if err != nil {
			t.Fatal(err)
		}
		shared, err := grammar.Compile(t.Context(), schema(text), v)
		if err != nil {
			t.Fatal(err)
		}
		var outputs sync.WaitGroup
		for seed := range 3 {
			_, tokens, _ := walk(t, alone, all, rand.New(rand.NewPCG(uint64(seed), 3)), 60)
			want := alone.Constrain([]int32{eos})
			got := shared.Constrain([]int32{eos})
			masks := make([][]uint64, len(tokens)+1)
			for i := range masks {
				masks[i] = slices.Clone(want.Allowed(tokens[:i]))
			}
			outputs.Go(func() {
				for i := range masks {
					var beside sync.WaitGroup
					beside.Go(func() { got.Prepare(tokens[:i]) })
					mask := got.Allowed(tokens[:i])
					if !slices.Equal(mask, masks[i]) {
						t.Errorf("%s: another mask after %d tokens", name, i)
					}
					beside.Wait()
				}
			})
		}
		outputs.Wait()
	}
}

// What is forced is what a walk finds that takes the only token while there is one.
func TestForced(t *testing.T) {
	all := texts()
	v := vocabulary(t, all)
	id := func(text string) int32 {
		return int32(slices.IndexFunc(all, func(b []byte) bool { return string(b) == text }))
	}
	for _, c := range []struct {
		source *inferencev1.StructuredOutput
		so     []string
		most   int
		want   []string
	}{
		{expression("xyz!"), nil, 8, []string{"x", "y", "z", "!"}},
		{expression("xyz!"), []string{"x"}, 2, []string{"y", "z"}},
		{expression("xyz!"), nil, 0, nil},
		{expression("xy?z"), nil, 8, []string{"x"}},
		{expression("xabc"), nil, 8, []string{"x"}}, // "a", "ab" or "abc"
		{expression("xy(z!)?"), nil, 8, []string{"x", "y"}},
		{expression("xyz"), []string{"x", "y", "z"}, 8, nil},
		{expression("xyz"), []string{"q"}, 8, nil},
		{&inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"QRS", "QRT!"}}}}, nil, 8, []string{"Q", "R"}},
	} {
		form, err := grammar.Compile(t.Context(), c.source, v)
		if err != nil {
			t.Fatal(err)
		}
		var so, want []int32
		for _, text := range c.so {
			so = append(so, id(text))
		}
		for _, text := range c.want {
			want = append(want, id(text))
		}
		constraint := form.Constrain([]int32{eos})
		if got := constraint.Forced(so, c.most); !slices.Equal(got, want) {
			t.Errorf("%v after %q: %v, want %v", c.source, c.so, got, want)
		}
		for i, token := range want {
			if mask := constraint.Allowed(append(so[:len(so):len(so)], want[:i]...)); !allowed(mask, token) || allowed(mask, token+1) || allowed(mask, token-1) {
				t.Errorf("%v: %q is not the only token after %q", c.source, all[token], c.so)
			}
		}
	}
}
