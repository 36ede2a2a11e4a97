package kvcache_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// The values are part of the protocol between workers and routers: they must
// not change. They were computed with Python's hashlib.
func TestHashesAreStable(t *testing.T) {
	root := kvcache.RootHash("d1", "cpu/bf16/bf16/1", "salt")
	if want := kvcache.Hash(0x9eab5f00fe104e64); root != want {
		t.Errorf("root = %#x, want %#x", root, want)
	}
	got := kvcache.BlockHashes(root, []int32{1, 2, 3, 4, -1}, 2)
	want := []kvcache.Hash{0xa661722ac45c1eb6, 0x28403434155d5e15}
	if !slices.Equal(got, want) {
		t.Errorf("hashes = %#x, want %#x", got, want)
	}
}

func TestRootsDiffer(t *testing.T) {
	seen := map[kvcache.Hash][3]string{}
	for _, fields := range [][3]string{
		{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"", "abc", ""}, {"a", "b", ""}, {"", "", ""},
	} {
		h := kvcache.RootHash(fields[0], fields[1], fields[2])
		if other, ok := seen[h]; ok {
			t.Errorf("%q and %q have the same root", fields, other)
		}
		seen[h] = fields
	}
}

func TestBlockHashesAreChained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.Int32Range(0, 3)
		a := rapid.SliceOfN(token, 0, 20).Draw(t, "a")
		b := rapid.SliceOfN(token, 0, 20).Draw(t, "b")
		size := rapid.IntRange(1, 4).Draw(t, "size")
		x, y := kvcache.BlockHashes(7, a, size), kvcache.BlockHashes(7, b, size)
		if len(x) != len(a)/size {
			t.Fatalf("%d hashes for %d tokens in blocks of %d", len(x), len(a), size)
		}
		for i := range min(len(x), len(y)) {
			end := (i + 1) * size
			if (x[i] == y[i]) != slices.Equal(a[:end], b[:end]) {
				t.Fatalf("block %d: hashes equal is %v for %v and %v", i, x[i] == y[i], a[:end], b[:end])
			}
		}
	})
}

func TestBlockHashesOfNothing(t *testing.T) {
	for _, size := range []int{-1, 0, 4} {
		if got := kvcache.BlockHashes(1, []int32{1, 2, 3}, size); len(got) != 0 {
			t.Errorf("block size %d: %v", size, got)
		}
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	tokens := make([]int32, 32)
	if n := testing.AllocsPerRun(100, func() { kvcache.Hash(1).Next(tokens) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
