package scheduler_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// seeded are tokens unlike those of another seed.
func seeded(n, seed int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(1000*seed + i)
	}
	return tokens
}

// What a Restore leaves for its request no later one takes, until it is released.
func TestRestoresLeaveWhatOthersLeft(t *testing.T) {
	w := newWorld(t, 20, standard)
	restore := func(id scheduler.SequenceID, tokens, spare int) *life {
		return w.submit(scheduler.Request{ID: id, Kind: scheduler.Restore, Tokens: seeded(tokens, int(id)), Spare: spare})
	}
	hanging := restore(1, 8, 18)
	if !hanging.reserved {
		t.Fatal("refused though there is room")
	}
	for id := scheduler.SequenceID(2); id < 6; id++ {
		if l := restore(id, 4, 0); l.reason != scheduler.NoBlocks {
			t.Errorf("%d: refused with %d, want %d", id, l.reason, scheduler.NoBlocks)
		}
	}
	w.arrive(hanging, 0)
	if l := restore(6, 4, 0); l.reason != scheduler.NoBlocks {
		t.Error("took what the request of another one needs that has arrived")
	}
	w.transferDone(hanging)
	after := restore(7, 4, 0)
	if !after.reserved {
		t.Error("refused though all is left again")
	}
	w.finishAll()
}

// Several together fill no more than their share, one alone may.
func TestRestoresShare(t *testing.T) {
	w := newWorld(t, 20, standard)
	for i, c := range []struct {
		blocks int
		taken  bool
	}{{1, true}, {3, true}, {2, false}, {1, true}, {1, false}} {
		id := scheduler.SequenceID(i + 1)
		if l := w.submit(scheduler.Request{ID: id, Kind: scheduler.Restore, Tokens: seeded(c.blocks*4, i)}); l.reserved != c.taken {
			t.Errorf("restore %d of %d blocks: taken %v", i, c.blocks, l.reserved)
		}
	}
	w.finishAll()
	if l := w.submit(scheduler.Request{ID: 9, Kind: scheduler.Restore, Tokens: seeded(28, 9)}); !l.reserved {
		t.Error("one alone is refused")
	}
	w.finishAll()
}

// What is there already takes no room, and leaves no less to others.
func TestRestoreTakesWhatItLacks(t *testing.T) {
	config := standard
	config.ContextTokens = 80
	for spare, taken := range map[int]bool{2: true, 3: false} {
		w := newWorld(t, 20, config)
		holds := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: seeded(48, 1), MaxTokens: 2})
		w.arrive(holds, 1)
		if holds.released || len(holds.table) != 13 {
			t.Fatal("the pool is not as it should be")
		}
		// Twelve of the seventeen blocks are there, and held: five are taken of seven.
		if l := w.submit(scheduler.Request{ID: 2, Kind: scheduler.Restore, Tokens: seeded(68, 1), Spare: spare}); l.reserved != taken {
			t.Errorf("leaving %d: taken %v", spare, l.reserved)
		}
		w.finishAll()
	}
}
