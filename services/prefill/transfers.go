package prefill

import (
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// transfers finds the transfer of a sequence when the engine has computed a layer.
type transfers struct {
	mu   sync.RWMutex
	byID map[scheduler.SequenceID]*outgoing

	mirrors []engine.Mirror // reused; of the goroutine that computes steps
}

// outgoing is the transfer of one sequence.
type outgoing struct {
	transfer *kvtransfer.Transfer
	// held is the number of leading blocks that the receiver has already.
	held int
}

func (t *transfers) add(id scheduler.SequenceID, o *outgoing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[id] = o
}

func (t *transfers) remove(id scheduler.SequenceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}

// mirrorsOf is where the engine can store what a step computes and sends, nil if there is none.
func (t *transfers) mirrorsOf(run scheduler.RunStep) []engine.Mirror {
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.mirrors = slices.Grow(t.mirrors[:0], len(run.Parts))[:len(run.Parts)]
	clear(t.mirrors)
	some := false
	for i, part := range run.Parts {
		o := t.byID[part.ID]
		if o == nil {
			continue
		}
		if first, end := worker.Unsent(part, o.held); first < end {
			t.mirrors[i] = o.transfer.Mirror(first, end-first)
			some = some || t.mirrors[i] != nil
		}
	}
	if !some {
		return nil
	}
	return t.mirrors
}

// layerDone sends the KV that one layer of a step completed.
func (t *transfers) layerDone(run scheduler.RunStep, layer int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, part := range run.Parts {
		o := t.byID[part.ID]
		if o == nil {
			continue
		}
		if first, end := worker.Unsent(part, o.held); first < end {
			o.transfer.Send(layer, first, run.Batch.Sequences[i].Blocks[first:end])
		}
	}
}

// layersDone notes the time at which a step has computed its layers.
func (t *transfers) layersDone(run scheduler.RunStep) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, part := range run.Parts {
		if o := t.byID[part.ID]; o != nil && part.Prompt {
			o.transfer.Computed()
		}
	}
}
