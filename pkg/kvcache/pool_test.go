package kvcache_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

const size = 2 // tokens in a block

func newPool(blocks int) *kvcache.Pool {
	return kvcache.NewPool(blocks, size, "model", "class")
}

// fill acquires, publishes every full block and releases again.
func fill(t *testing.T, p *kvcache.Pool, salt string, tokens ...int32) []kvcache.BlockID {
	t.Helper()
	table := acquire(t, p, salt, tokens...)
	p.Release(table)
	return table
}

func acquire(t *testing.T, p *kvcache.Pool, salt string, tokens ...int32) []kvcache.BlockID {
	t.Helper()
	table, cached, chain, ok := p.Acquire(salt, p.BlockHashes(salt, tokens), tokens, (len(tokens)+size-1)/size)
	if !ok {
		t.Fatalf("no room for %v: %+v", tokens, p.Stats())
	}
	for i := cached; (i+1)*size <= len(tokens); i++ {
		chain = p.Publish(chain, table[i], tokens[i*size:(i+1)*size])
	}
	return table
}

func matched(p *kvcache.Pool, salt string, tokens ...int32) int {
	blocks, _ := p.Match(nil, salt, tokens)
	p.Release(blocks)
	return len(blocks)
}

func TestCachedBehind(t *testing.T) {
	p := newPool(4)
	a := []int32{1, 2, 3, 4, 5, 6}
	hashes := p.BlockHashes("s", a)
	fill(t, p, "s", a...)
	table, chain := p.MatchHashes(nil, "s", hashes[:1], a)
	lost := chain
	for _, test := range []struct {
		chain  kvcache.Chain
		hashes []kvcache.Hash
		tokens []int32
		n      int
		ok     bool
	}{
		{p.Root("s"), hashes, a, 3, true},
		{chain, hashes[1:], a[2:], 2, true},
		{chain, hashes[1:2], a[2:], 1, true},
		{chain, hashes[1:], []int32{3, 5, 5, 6}, 0, true},
		{chain, hashes, a, 0, true},
		{kvcache.Chain{}, hashes, a, 0, false},
	} {
		if n, ok := p.CachedBehind(test.chain, test.hashes, test.tokens); n != test.n || ok != test.ok {
			t.Errorf("%v: %d %v, want %d %v", test.tokens, n, ok, test.n, test.ok)
		}
	}
	p.Release(table)
	fill(t, p, "s", 7, 7, 7, 7, 7, 7, 7, 7) // evicts all of it
	if n, ok := p.CachedBehind(lost, hashes[1:], a[2:]); n != 0 || ok {
		t.Errorf("behind what is gone: %d %v", n, ok)
	}
}

func TestMatch(t *testing.T) {
	p := newPool(8)
	fill(t, p, "s", 1, 2, 3, 4, 5)
	for _, test := range []struct {
		name   string
		salt   string
		tokens []int32
		want   int
	}{
		{"all full blocks", "s", []int32{1, 2, 3, 4, 5}, 2},
		{"more", "s", []int32{1, 2, 3, 4, 5, 6}, 2},
		{"half a block less", "s", []int32{1, 2, 3}, 1},
		{"another end", "s", []int32{1, 2, 3, 5}, 1},
		{"same block elsewhere", "s", []int32{3, 4}, 0},
		{"another salt", "t", []int32{1, 2}, 0},
		{"less than a block", "s", []int32{1}, 0},
		{"nothing", "s", nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := matched(p, test.salt, test.tokens...); got != test.want {
				t.Errorf("matched %d blocks, want %d", got, test.want)
			}
		})
	}
}

func TestAcquireTakesAllOrNothing(t *testing.T) {
	p := newPool(4)
	fill(t, p, "", 1, 2, 3, 4)
	before := p.Stats()
	if _, _, _, ok := p.Acquire("", p.BlockHashes("", []int32{1, 2}), []int32{1, 2}, 5); ok {
		t.Fatal("five blocks of four")
	}
	if after := p.Stats(); after != before {
		t.Errorf("a failure changed %+v to %+v", before, after)
	}
	// The two cached blocks are hits: they can not be evicted to make room.
	if _, _, _, ok := p.Acquire("", p.BlockHashes("", []int32{1, 2, 3, 4}), []int32{1, 2, 3, 4, 5}, 4); !ok {
		t.Error("two hits and two free blocks do not make four")
	}
}

func TestEvictionIsLeastRecentlyUsedLeavesFirst(t *testing.T) {
	// One free block is left. Then b goes, its end first, then a, its end first.
	for i, want := range [][2]int{{3, 2}, {3, 1}, {3, 0}, {2, 0}, {1, 0}, {0, 0}} {
		p := newPool(6)
		fill(t, p, "", 1, 1, 2, 2)       // a
		fill(t, p, "", 3, 3, 4, 4)       // b
		fill(t, p, "", 1, 1, 2, 2, 5, 5) // a again, longer
		taken, ok := p.Allocate(nil, i+1)
		if !ok {
			t.Fatalf("no %d blocks", i+1)
		}
		got := [2]int{matched(p, "", 1, 1, 2, 2, 5, 5), matched(p, "", 3, 3, 4, 4)}
		if got != want {
			t.Errorf("after %d blocks taken, a and b have %v blocks, want %v", len(taken), got, want)
		}
	}
}

func TestEvictionOfABeginningWhoseEndIsHeld(t *testing.T) {
	p := newPool(4)
	tokens := []int32{1, 1, 2, 2}
	first, _, chain, _ := p.Acquire("", nil, tokens, 1)
	second, _, copied, _ := p.Acquire("", nil, tokens, 2) // computes the same again
	p.Publish(chain, first[0], tokens[:2])
	copied = p.Publish(copied, second[0], tokens[:2]) // stays private
	p.Publish(copied, second[1], tokens[2:])          // hangs on first's block
	p.Release(first)
	if s := p.Stats(); s.Cached != 1 || s.Held != 2 || s.Published != 2 || p.Available() != 2 {
		t.Fatalf("%+v", s)
	}
	if _, ok := p.Allocate(nil, 2); !ok {
		t.Fatal("what counts as available could not be had")
	}
	if n := matched(p, "", tokens...); n != 0 {
		t.Errorf("%d blocks found behind one that is gone", n)
	}
	p.Release(second)
	if s := p.Stats(); s.Published != 0 || s.Free != 2 || s.Misuses != 0 {
		t.Errorf("%+v", s)
	}
	// Its chain is lost, too.
	again, _ := p.Allocate(nil, 1)
	if p.Publish(copied, again[0], []int32{3, 3}) != (kvcache.Chain{}) || p.Stats().Published != 0 {
		t.Error("published behind a block that is gone")
	}
}

func TestAllocateGivesRuns(t *testing.T) {
	p := newPool(8)
	a, _ := p.Allocate(nil, 3)
	b, _ := p.Allocate(nil, 3)
	p.Release(b)
	p.Release(a)
	c, _ := p.Allocate(nil, 6)
	if !slices.Equal(c, []kvcache.BlockID{0, 1, 2, 3, 4, 5}) {
		t.Errorf("blocks %v", c)
	}
}

func TestMisuseIsCountedAndHarmless(t *testing.T) {
	p := newPool(4)
	table := acquire(t, p, "", 1, 2, 3)
	p.Release(table)
	stats := p.Stats()
	calls := []func(){
		func() { p.Release(table[:1]) },
		func() { p.Release([]kvcache.BlockID{-1}) },
		func() { p.Reserve(table[:1]) },
		func() { p.Arrived(table[:1]) },
		func() { p.Quarantine(table[:1]) },
		func() { p.Drained(table[:1]) },
		func() { p.Publish(p.Root(""), table[0], []int32{1, 2}) },
		func() { p.Publish(p.Root(""), 7, []int32{1, 2}) },
	}
	for i, call := range calls {
		call()
		stats.Misuses++
		if got := p.Stats(); got != stats {
			t.Errorf("call %d: %+v, want %+v", i, got, stats)
		}
	}
	if _, ok := p.Allocate(nil, -1); ok {
		t.Error("allocated -1 blocks")
	}
}

func BenchmarkAcquire(b *testing.B) {
	p := kvcache.NewPool(8192, 32, "model", "class")
	tokens := make([]int32, 8192)
	hashes := p.BlockHashes("", tokens)
	table, _, chain, _ := p.Acquire("", hashes, tokens, 256)
	for i, id := range table {
		chain = p.Publish(chain, id, tokens[i*32:(i+1)*32])
	}
	p.Release(table)
	b.ReportAllocs()
	for b.Loop() {
		table, _, _, _ := p.Acquire("", hashes, tokens, 300)
		p.Release(table)
	}
}
