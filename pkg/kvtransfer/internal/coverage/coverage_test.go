package coverage_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/coverage"
)

// Set behaves like a table of booleans.
func TestSetIsATable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, blocks := rapid.IntRange(0, 5).Draw(t, "layers"), rapid.IntRange(0, 150).Draw(t, "blocks")
		set := coverage.New(layers, blocks)
		table := map[[2]int]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				layer := rapid.IntRange(-1, layers).Draw(t, "layer")
				first, count := rapid.IntRange(-1, blocks).Draw(t, "first"), rapid.IntRange(-1, 80).Draw(t, "count")
				want := layer >= 0 && layer < layers && first >= 0 && count >= 0 && first+count <= blocks
				for b := first; want && b < first+count; b++ {
					want = !table[[2]int{layer, b}]
				}
				if got := set.Add(layer, first, count); got != want {
					t.Fatalf("add gives %v", got)
				}
				for b := first; want && b < first+count; b++ {
					table[[2]int{layer, b}] = true
				}
			},
			"": func(t *rapid.T) {
				if set.Missing() != layers*blocks-len(table) {
					t.Fatalf("%d missing, %d of %d there", set.Missing(), len(table), layers*blocks)
				}
				for layer := range layers {
					for b := range blocks {
						if !table[[2]int{layer, b}] {
							if l, got, ok := set.FirstMissing(); !ok || l != layer || got != b {
								t.Fatalf("first missing is %d, %d, %v, want %d, %d", l, got, ok, layer, b)
							}
							return
						}
					}
				}
				if _, _, ok := set.FirstMissing(); ok {
					t.Fatal("a full set misses something")
				}
			},
		})
	})
}

func TestAddRefusesHugeNumbers(t *testing.T) {
	const most = int(^uint(0) >> 1)
	set := coverage.New(2, 70)
	for _, test := range [][3]int{{0, most, most}, {0, 1, most}, {most, 0, 1}, {0, -most, most}, {1, 69, 2}} {
		if set.Add(test[0], test[1], test[2]) {
			t.Errorf("add of %v was taken", test)
		}
	}
	if set.Missing() != 140 {
		t.Errorf("%d missing", set.Missing())
	}
}
