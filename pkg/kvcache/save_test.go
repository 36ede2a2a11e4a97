package kvcache_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

func TestNominationsGoByEviction(t *testing.T) {
	p := newPool(8)
	a, b := []int32{1, 2, 5, 5}, []int32{1, 2, 6, 6}
	tableA, tableB := fill(t, p, "x", a...), fill(t, p, "x", b...)
	for i, want := range []struct {
		tokens []int32
		blocks []kvcache.BlockID
	}{{a, tableA}, {b, tableB}} {
		n, ok := p.Nominate()
		if !ok || n.Salt != "x" || !slices.Equal(n.Tokens, want.tokens) || !slices.Equal(n.Blocks, want.blocks) {
			t.Fatalf("nomination %d: %+v, %v; want %+v", i, n, ok, want)
		}
		p.Saved(n.Blocks)
	}
	p.Unpin(tableB)
	p.Unpin(tableA)
	if n, ok := p.Nominate(); ok {
		t.Errorf("%+v was nominated although all is saved", n)
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
	n, _ := p.Nominate()
	fill(t, p, "", old...)
	p.Unpin(n.Blocks)
	if _, ok := p.Allocate(nil, 2); !ok {
		t.Fatal("no blocks")
	}
	if p.Cached("", p.BlockHashes("", old), old) != 1 {
		t.Error("the block that was used last was evicted first")
	}
}

func TestEvictedBlocksAreNominatedAnew(t *testing.T) {
	p := newPool(1)
	tokens := make([]int32, size)
	for range 3 {
		fill(t, p, "", tokens...)
		n, ok := p.Nominate()
		if !ok {
			t.Fatal("nothing is nominated")
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

// TestUnsavedBlocksAreNominatedOnceMore: not for ever, and not what somebody has.
func TestUnsavedBlocksAreNominatedOnceMore(t *testing.T) {
	p := newPool(4)
	tokens := []int32{1, 2, 5, 5}
	table := fill(t, p, "", tokens...)
	for i, want := range []bool{true, true, false} {
		n, ok := p.Nominate()
		if ok != want {
			t.Fatalf("nomination %d: %v, want %v", i, ok, want)
		}
		if !ok {
			break
		}
		if !slices.Equal(n.Blocks, table) || p.Pinned(n.Blocks) != 2 {
			t.Errorf("nomination %d: %+v, %d pinned", i, n, p.Pinned(n.Blocks))
		}
		p.Unsaved(n.Blocks)
		p.Unpin(n.Blocks)
	}
	// One that another nomination saved is done with.
	p = newPool(4)
	fill(t, p, "", tokens...)
	n, _ := p.Nominate()
	p.Saved(n.Blocks[:1])
	p.Unsaved(n.Blocks)
	p.Unpin(n.Blocks)
	if again, ok := p.Nominate(); !ok || len(again.Blocks) != 2 {
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
	n, _ = p.Nominate()
	held, _ := p.Match(nil, "", tokens[:2])
	if got := p.Pinned(n.Blocks); got != 1 || len(held) != 1 {
		t.Errorf("%d of %d blocks are pinned only, %d are held", got, len(n.Blocks), len(held))
	}
}

// A Nominate that finds nothing is the first, too: what is published after it is
// nominated while it is held.
func TestHeldBlocksAreNominatedOfAnEmptyPool(t *testing.T) {
	p := newPool(8)
	if n, ok := p.Nominate(); ok {
		t.Fatalf("%+v of an empty pool", n)
	}
	table, ok := p.Allocate(nil, 2)
	if !ok {
		t.Fatal("no blocks")
	}
	p.Publish(p.Root(""), table[0], []int32{1, 2})
	if n, ok := p.NominateHeld(); !ok || !slices.Equal(n.Blocks, table[:1]) {
		t.Errorf("%+v, %v", n, ok)
	}
}

// TestHeldBlocksAreNominated: of those that are published from then on, each once, the
// oldest with all that follows it.
func TestHeldBlocksAreNominated(t *testing.T) {
	p := newPool(8)
	fill(t, p, "", 9, 9)
	if n, ok := p.NominateHeld(); ok {
		t.Fatalf("%+v: nobody nominates yet", n)
	}
	n, _ := p.Nominate()
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
		n, ok := p.NominateHeld()
		if !ok || !slices.Equal(n.Blocks, table[:want]) || !slices.Equal(n.Tokens, tokens[:want*size]) {
			t.Fatalf("%+v, %v; want %d blocks", n, ok, want)
		}
		if p.Pinned(n.Blocks) != 0 {
			t.Error("blocks of a sequence count as pinned only")
		}
		p.Unpin(n.Blocks)
	}
	held(2)
	if n, ok := p.NominateHeld(); ok {
		t.Errorf("%+v is nominated twice", n)
	}
	p.Publish(chain, table[2], tokens[2*size:])
	held(3)
	p.Release(table)
	// What is let go before its turn is Nominate's.
	fill(t, p, "", 7, 7)
	if n, ok := p.NominateHeld(); ok {
		t.Errorf("%+v is nominated as held", n)
	}
	if n, ok := p.Nominate(); !ok || !slices.Equal(n.Tokens, []int32{7, 7}) {
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
	first, _ := p.Nominate()
	second, _ := p.Nominate()
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

// BenchmarkNominate is of a pool full of prefixes of 16 blocks, half of which were
// given before.
func BenchmarkNominate(b *testing.B) {
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
				n, _ := p.Nominate()
				p.Unpin(n.Blocks)
			}
			b.ReportAllocs()
			for b.Loop() {
				n, ok := p.Nominate()
				if !ok {
					b.Fatal("nothing is left")
				}
				p.Unpin(n.Blocks)
				p.Reconsider(n.Blocks)
			}
		})
	}
}

// What a store had that is gone is nominated again, once nobody reads it for another save.
func TestForgetSaved(t *testing.T) {
	p := newPool(8)
	a, b, c := []int32{1, 2, 3, 4}, []int32{5, 6}, []int32{7, 8}
	fill(t, p, "", a...)
	saved, _ := p.Nominate()
	p.Saved(saved.Blocks)
	p.Unpin(saved.Blocks)
	held := acquire(t, p, "", b...)
	heldSave, _ := p.NominateHeld()
	p.Saved(heldSave.Blocks)
	p.Unpin(heldSave.Blocks)
	fill(t, p, "", c...)
	pinned, _ := p.Nominate()
	if _, more := p.Nominate(); more {
		t.Fatal("all is saved, or is being saved")
	}
	p.ForgetSaved()
	again, more := p.Nominate()
	if !more || !slices.Equal(again.Tokens, a) {
		t.Fatalf("%+v is nominated, %v", again, more)
	}
	if n, more := p.Nominate(); more {
		t.Errorf("%+v is nominated, which is held or pinned", n)
	}
	p.Unpin(again.Blocks)
	p.Unsaved(pinned.Blocks)
	p.Unpin(pinned.Blocks)
	p.Release(held)
	for _, want := range [][]int32{c, b} {
		if n, more := p.Nominate(); !more || !slices.Equal(n.Tokens, want) {
			t.Errorf("%+v is nominated, %v; want %v", n, more, want)
		}
	}
	if s := p.Stats(); s.Unoffered != 0 || s.Misuses != 0 {
		t.Errorf("%+v", s)
	}
}
