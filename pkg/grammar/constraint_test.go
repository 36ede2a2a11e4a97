package grammar_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
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
