package worker_test

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// check looks at what must hold after every event.
func (w *world) check() {
	w.t.Helper()
	remaining, transfers := 0, 0
	for _, l := range w.order {
		if !l.gone {
			remaining++
		}
		if !l.bare() && (l.told == opened || l.told == broken) {
			transfers++
		}
		w.checkOffers(l)
	}
	if got := w.core.Remaining(); got != remaining {
		w.fatalf("%d sequences remain, want %d", got, remaining)
	}
	if got := w.core.Transfers(); got != transfers {
		w.fatalf("%d transfers, want %d", got, transfers)
	}
	if counted, are := w.core.Prefills(); counted != are {
		w.fatalf("%d prefills are counted, and there are %d", counted, are)
	}
	if got := w.core.Draining(); got != w.draining {
		w.fatalf("draining %v, want %v", got, w.draining)
	}
	if misuses := w.core.PoolStats().Misuses; misuses != 0 {
		w.fatalf("%d misuses of the pool", misuses)
	}
	w.checkWrites()
}

// checkWrites: whoever may write a block has it alone.
func (w *world) checkWrites() {
	holders := map[kvcache.BlockID][]*sequence{}
	for _, l := range w.order {
		if !l.gone && l.table != nil && (!l.over() || w.computes(l) || l.transfer == opened || l.transfer == broken) {
			for _, b := range l.table {
				holders[b] = append(holders[b], l)
			}
		}
	}
	inspected := map[kvcache.BlockID]bool{}
	for _, task := range w.backgroundTasks {
		if a, is := task.(worker.Inspect); is {
			for _, b := range a.NotFinite.Blocks {
				inspected[b] = true
			}
		}
	}
	writes := func(l *sequence, blocks []kvcache.BlockID) {
		for _, b := range blocks {
			if len(holders[b]) != 1 || inspected[b] {
				w.fatalf("%d: may write block %d, which %d hold, inspected %v", l.id, b, len(holders[b]), inspected[b])
			}
		}
	}
	for _, l := range w.order {
		if l.receives() && (l.transfer == opened || l.transfer == broken) {
			writes(l, l.table[l.cached:])
		}
	}
	if w.inFlight == nil {
		return
	}
	for i, part := range w.inFlight.Parts {
		work, size := w.inFlight.Batch.Sequences[i], w.config.BlockTokens
		writes(w.sequences[part.ID], work.Blocks[work.Start/size:(work.Start+len(work.Tokens)-1)/size+1])
	}
}

func (l *sequence) receives() bool {
	return l.request.Kind == scheduler.Receive || l.request.Kind == scheduler.Restore
}
