package kvcache_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Every slice that is allowed has bytes of its own, and together they are the memory.
func TestPageMapCoversTheMemoryOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := kvcache.PageMap{
			Layout: kvcache.Layout{Layers: rapid.IntRange(1, 5).Draw(t, "layers"), SliceBytes: rapid.IntRange(1, 9).Draw(t, "bytes")},
			Blocks: rapid.IntRange(1, 7).Draw(t, "blocks"),
		}
		memory := make([]byte, m.Bytes())
		for layer := range m.Layout.Layers {
			for block := range kvcache.BlockID(m.Blocks) {
				if err := m.Check(layer, block); err != nil {
					t.Fatal(err)
				}
				slice := m.Slice(memory, layer, block)
				if len(slice) != m.Layout.SliceBytes || cap(slice) != len(slice) {
					t.Fatalf("a slice of %d bytes, and %d behind", len(slice), cap(slice)-len(slice))
				}
				for i := range slice {
					slice[i]++
				}
			}
		}
		for at, times := range memory {
			if times != 1 {
				t.Fatalf("byte %d is in %d slices", at, times)
			}
		}
	})
}

func TestPageMapRefuses(t *testing.T) {
	m := kvcache.PageMap{Layout: kvcache.Layout{Layers: 3, SliceBytes: 10}, Blocks: 4}
	for _, c := range []struct {
		name   string
		layer  int
		blocks []kvcache.BlockID
		bytes  int
		ok     bool
	}{
		{"all is right", 2, []kvcache.BlockID{3, 0, 3}, 30, true},
		{"nothing", 0, nil, 0, true},
		{"layer below", -1, []kvcache.BlockID{0}, 10, false},
		{"layer above", 3, []kvcache.BlockID{0}, 10, false},
		{"block below", 0, []kvcache.BlockID{0, -1}, 20, false},
		{"block above", 0, []kvcache.BlockID{0, 4}, 20, false},
		{"bytes too few", 0, []kvcache.BlockID{0}, 9, false},
		{"bytes too many", 0, []kvcache.BlockID{0}, 11, false},
		{"bytes of nothing", 0, nil, 1, false},
	} {
		if err := m.CheckAll(c.layer, c.blocks, c.bytes); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
