package scheduler_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// onlySave is the save that runs.
func (w *world) onlySave() (scheduler.SaveID, *pinned) {
	w.t.Helper()
	if len(w.saves.open) != 1 {
		w.t.Fatalf("%d saves run, want 1", len(w.saves.open))
	}
	for id, p := range w.saves.open {
		return id, p
	}
	return 0, nil
}

// pressed is a pool of 20 blocks: six are cached, ten are held by somebody whose KV is
// on its way, and one waits for more than the ten others.
func pressed(t *testing.T, waits int) (w *world, holds, waiting *life) {
	t.Helper()
	config := standard
	config.ContextTokens = 80
	w = newWorld(t, 20, config)
	receive := func(id scheduler.SequenceID, blocks int) *life {
		return w.submit(scheduler.Request{ID: id, Kind: scheduler.Receive, Tokens: seeded(blocks*4, int(id)), MaxTokens: 1})
	}
	first := receive(1, 6)
	w.arrive(first, 1)
	holds, waiting = receive(2, 10), receive(3, waits)
	if !first.released || !holds.reserved || waiting.reserved {
		t.Fatal("the pool is not as it should be")
	}
	return w, holds, waiting
}

// Cached blocks are saved while somebody waits whom they would not help.
func TestSavesBeginBesideOneThatWaits(t *testing.T) {
	w, holds, waiting := pressed(t, 16)
	w.saves.limit = 1
	w.handle(scheduler.SaveLimit{Saves: 1})
	id, p := w.onlySave()
	if p.stopped || len(p.save.Blocks) != 6 {
		t.Fatalf("stopped %v: %+v", p.stopped, p.save)
	}
	w.handle(scheduler.Cancel{ID: 999})
	if p.stopped {
		t.Fatal("stopped though that helps nobody")
	}
	w.saveDone(id, true)
	// What is freed goes to the one that waits, saved or not.
	w.transferDone(holds)
	if !waiting.reserved {
		t.Error("waits though all is free")
	}
	w.finishAll()
}

// A save that stands in the way is stopped, and none begins before the one that waited
// has its blocks. What was not saved is offered once more, and no more.
func TestSavesGiveWay(t *testing.T) {
	w, holds, waiting := pressed(t, 16)
	w.saves.limit = 1
	w.handle(scheduler.SaveLimit{Saves: 1})
	id, p := w.onlySave()
	w.transferDone(holds)
	if !p.stopped || waiting.reserved {
		t.Fatalf("stopped %v", p.stopped)
	}
	w.saveDone(id, false)
	if !waiting.reserved || len(w.saves.open) != 1 || w.saves.begun != 2 {
		t.Fatalf("reserved %v, %d saves", waiting.reserved, w.saves.begun)
	}
	again, p := w.onlySave()
	if left := len(p.save.Blocks); left == 0 || left > 4 {
		t.Errorf("%d blocks are offered once more, two of six were evicted at least", left)
	}
	w.saveDone(again, false)
	if w.saves.begun != 2 {
		t.Errorf("%d saves of the same blocks", w.saves.begun)
	}
	w.finishAll()
}
