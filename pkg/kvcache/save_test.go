package kvcache_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

func TestSaveCandidatesGoByEviction(t *testing.T) {
	p := newPool(8)
	a, b := []int32{1, 2, 5, 5}, []int32{1, 2, 6, 6}
	tableA, tableB := fill(t, p, "x", a...), fill(t, p, "x", b...)
	for i, want := range []struct {
		tokens []int32
		blocks []kvcache.BlockID
	}{{a, tableA}, {b, tableB}} {
		n, ok := p.NextToSave()
		if !ok || n.Salt != "x" || !slices.Equal(n.Tokens, want.tokens) || !slices.Equal(n.Blocks, want.blocks) {
			t.Fatalf("candidate %d: %+v, %v; want %+v", i, n, ok, want)
		}
		p.Saved(n.Blocks)
	}
	p.Unpin(tableB)
	p.Unpin(tableA)
	if n, ok := p.NextToSave(); ok {
		t.Errorf("%+v was offered although all is saved", n)
	}
	// The order of eviction is what it was: a's end goes first, though it was
	// unpinned after b's.
	if _, ok := p.Allocate(nil, 6); !ok {
		t.Fatal("no blocks")
	}
	if s := p.Stats(); s.Evictions != 1 || s.SavedEvictions != 1 {
		t.Errorf("%+v", s)
	}
	if got := p.Cached("x", p.BlockHashes("x", a), a); got != 1 {
		t.Errorf("%d blocks of a are cached, want 1", got)
	}
	if got := p.Cached("x", p.BlockHashes("x", b), b); got != 2 {
		t.Errorf("%d blocks of b are cached, want 2", got)
	}
}

// TestUsedWhilePinned: a sequence that used a block while it was pinned keeps it
// from being evicted first.
func TestUsedWhilePinned(t *testing.T) {
	p := newPool(3)
	old, young := make([]int32, size), slices.Repeat([]int32{1}, size)
	fill(t, p, "", old...)
	fill(t, p, "", young...)
	n, _ := p.NextToSave()
	fill(t, p, "", old...)
	p.Unpin(n.Blocks)
	if _, ok := p.Allocate(nil, 2); !ok {
		t.Fatal("no blocks")
	}
	if p.Cached("", p.BlockHashes("", old), old) != 1 {
		t.Error("the block that was used last was evicted first")
	}
}

func TestEvictedBlocksAreOfferedAnew(t *testing.T) {
	p := newPool(1)
	tokens := make([]int32, size)
	for range 3 {
		fill(t, p, "", tokens...)
		n, ok := p.NextToSave()
		if !ok {
			t.Fatal("nothing is offered")
		}
		p.Unpin(n.Blocks)
		table, ok := p.Allocate(nil, 1)
		if !ok {
			t.Fatal("no blocks")
		}
		p.Release(table)
	}
	if s := p.Stats(); s.Evictions != 3 || s.SavedEvictions != 0 {
		t.Errorf("%+v", s)
	}
}

// TestUnsavedBlocksAreOfferedOnceMore: not for ever, and not what somebody has.
func TestUnsavedBlocksAreOfferedOnceMore(t *testing.T) {
	p := newPool(4)
	tokens := []int32{1, 2, 5, 5}
	table := fill(t, p, "", tokens...)
	for i, want := range []bool{true, true, false} {
		n, ok := p.NextToSave()
		if ok != want {
			t.Fatalf("candidate %d: %v, want %v", i, ok, want)
		}
		if !ok {
			break
		}
		if !slices.Equal(n.Blocks, table) || p.Pinned(n.Blocks) != 2 {
			t.Errorf("candidate %d: %+v, %d pinned", i, n, p.Pinned(n.Blocks))
		}
		p.Unsaved(n.Blocks)
		p.Unpin(n.Blocks)
	}
	// One that another candidate saved is done with.
	p = newPool(4)
	fill(t, p, "", tokens...)
	n, _ := p.NextToSave()
	p.Saved(n.Blocks[:1])
	p.Unsaved(n.Blocks)
	p.Unpin(n.Blocks)
	if again, ok := p.NextToSave(); !ok || len(again.Blocks) != 2 {
		t.Errorf("%+v, %v: the end was not saved", again, ok)
	} else {
		p.Unpin(again.Blocks)
	}
	if s := p.Stats(); s.Unoffered != 0 || s.Misuses != 0 {
		t.Errorf("%+v", s)
	}
	// What a sequence holds, too, would not come back.
	p = newPool(4)
	fill(t, p, "", tokens...)
	n, _ = p.NextToSave()
	held, _ := p.Match(nil, "", tokens[:2])
	if got := p.Pinned(n.Blocks); got != 1 || len(held) != 1 {
		t.Errorf("%d of %d blocks are pinned only, %d are held", got, len(n.Blocks), len(held))
	}
}

// A NextToSave that finds nothing is the first, too: what is published after it is
// offered while it is held.
func TestHeldBlocksAreOfferedOfAnEmptyPool(t *testing.T) {
	p := newPool(8)
	if n, ok := p.NextToSave(); ok {
		t.Fatalf("%+v of an empty pool", n)
	}
	table, ok := p.Allocate(nil, 2)
	if !ok {
		t.Fatal("no blocks")
	}
	p.Publish(p.Root(""), table[0], []int32{1, 2})
	if n, ok := p.NextHeldToSave(); !ok || !slices.Equal(n.Blocks, table[:1]) {
		t.Errorf("%+v, %v", n, ok)
	}
}

// TestHeldBlocksAreOffered: of those that are published from then on, each once, the
// oldest with all that follows it.
func TestHeldBlocksAreOffered(t *testing.T) {
	p := newPool(8)
	fill(t, p, "", 9, 9)
	if n, ok := p.NextHeldToSave(); ok {
		t.Fatalf("%+v: nobody offers yet", n)
	}
	n, _ := p.NextToSave()
	p.Saved(n.Blocks)
	p.Unpin(n.Blocks)
	tokens := []int32{1, 2, 3, 4, 5, 6}
	table, ok := p.Allocate(nil, 3)
	if !ok {
		t.Fatal("no blocks")
	}
	chain := p.Root("")
	for i := range 2 {
		chain = p.Publish(chain, table[i], tokens[i*size:(i+1)*size])
	}
	held := func(want int) {
		t.Helper()
		n, ok := p.NextHeldToSave()
		if !ok || !slices.Equal(n.Blocks, table[:want]) || !slices.Equal(n.Tokens, tokens[:want*size]) {
			t.Fatalf("%+v, %v; want %d blocks", n, ok, want)
		}
		if p.Pinned(n.Blocks) != 0 {
			t.Error("blocks of a sequence count as pinned only")
		}
		p.Unpin(n.Blocks)
	}
	held(2)
	if n, ok := p.NextHeldToSave(); ok {
		t.Errorf("%+v is offered twice", n)
	}
	p.Publish(chain, table[2], tokens[2*size:])
	held(3)
	p.Release(table)
	// What is let go before its turn is NextToSave's.
	fill(t, p, "", 7, 7)
	if n, ok := p.NextHeldToSave(); ok {
		t.Errorf("%+v is offered as held", n)
	}
	if n, ok := p.NextToSave(); !ok || !slices.Equal(n.Tokens, []int32{7, 7}) {
		t.Errorf("%+v, %v", n, ok)
	}
	if s := p.Stats(); s.Misuses != 0 {
		t.Errorf("%+v", s)
	}
}

// TestUnofferedEvictions: those of blocks whose turn never came.
func TestUnofferedEvictions(t *testing.T) {
	p := newPool(3)
	for seed := range int32(3) {
		fill(t, p, "", slices.Repeat([]int32{seed}, size)...)
	}
	first, _ := p.NextToSave()
	second, _ := p.NextToSave()
	p.Saved(first.Blocks)
	p.Unpin(first.Blocks)
	p.Unpin(second.Blocks)
	if _, ok := p.Allocate(nil, 3); !ok {
		t.Fatal("no blocks")
	}
	if s := p.Stats(); s.Evictions != 3 || s.SavedEvictions != 1 || s.UnofferedEvictions != 1 {
		t.Errorf("%+v", s)
	}
}

// BenchmarkNextToSave is of a pool full of prefixes of 16 blocks, half of which were
// given before.
func BenchmarkNextToSave(b *testing.B) {
	for _, blocks := range []int{1 << 12, 1 << 16} {
		b.Run(strconv.Itoa(blocks), func(b *testing.B) {
			p := newPool(blocks)
			for i := range blocks / 16 {
				tokens := make([]int32, 16*size)
				tokens[0] = int32(i)
				table, _, chain, ok := p.Acquire("", p.BlockHashes("", tokens), tokens, 16)
				if !ok {
					b.Fatal("no room")
				}
				for j, id := range table {
					chain = p.Publish(chain, id, tokens[j*size:(j+1)*size])
				}
				p.Release(table)
			}
			for range blocks / 32 {
				n, _ := p.NextToSave()
				p.Unpin(n.Blocks)
			}
			b.ReportAllocs()
			for b.Loop() {
				n, ok := p.NextToSave()
				if !ok {
					b.Fatal("nothing is left")
				}
				p.Unpin(n.Blocks)
				p.Reconsider(n.Blocks)
			}
		})
	}
}

// What a store had that is gone is offered again, once nobody reads it for another save.
func TestForgetSaved(t *testing.T) {
	p := newPool(8)
	a, b, c := []int32{1, 2, 3, 4}, []int32{5, 6}, []int32{7, 8}
	fill(t, p, "", a...)
	saved, _ := p.NextToSave()
	p.Saved(saved.Blocks)
	p.Unpin(saved.Blocks)
	held := acquire(t, p, "", b...)
	heldSave, _ := p.NextHeldToSave()
	p.Saved(heldSave.Blocks)
	p.Unpin(heldSave.Blocks)
	fill(t, p, "", c...)
	pinned, _ := p.NextToSave()
	if _, more := p.NextToSave(); more {
		t.Fatal("all is saved, or is being saved")
	}
	p.ForgetSaved()
	again, more := p.NextToSave()
	if !more || !slices.Equal(again.Tokens, a) {
		t.Fatalf("%+v is offered, %v", again, more)
	}
	if n, more := p.NextToSave(); more {
		t.Errorf("%+v is offered, which is held or pinned", n)
	}
	p.Unpin(again.Blocks)
	p.Unsaved(pinned.Blocks)
	p.Unpin(pinned.Blocks)
	p.Release(held)
	for _, want := range [][]int32{c, b} {
		if n, more := p.NextToSave(); !more || !slices.Equal(n.Tokens, want) {
			t.Errorf("%+v is offered, %v; want %v", n, more, want)
		}
	}
	if s := p.Stats(); s.Unoffered != 0 || s.Misuses != 0 {
		t.Errorf("%+v", s)
	}
}
