package worker

import (
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// NotFiniteError is why a sequence failed whose logits were not finite.
type NotFiniteError struct {
	// NotFiniteError says where that began, as far as it was found out.
	*engine.NotFiniteError
	// Origin is the worker or store that sent the KV which is not finite; "" if it was
	// computed here, or if all of it is finite.
	Origin string
}

// Error says whose fault it is.
func (e *NotFiniteError) Error() string {
	if e.Origin != "" {
		return fmt.Sprintf("the KV that came from %s is not finite: %v", e.Origin, e.NotFiniteError)
	}
	return e.NotFiniteError.Error()
}

// Unwrap gives the engine's error.
func (e *NotFiniteError) Unwrap() error { return e.NotFiniteError }

// ErrNotFinite is what a worker leaves with whose own arithmetic gives what is not finite.
var ErrNotFinite = errors.New("the engine's logits were not finite for several prompts: its device or the weights in memory are at fault; restart the worker, and if this happens again check the model's files")

// A worker leaves when ownFailures prompts within ownWindow had logits that were not
// finite, by its own computing. One prompt counts once, however often it is tried: some
// model may have no finite answer to it.
const (
	ownFailures = 2
	ownWindow   = 10 * time.Minute
)

// ownFault remembers the prompts that a worker's own computing failed. The zero value
// remembers none.
type ownFault struct {
	seed   maphash.Seed
	failed []failedPrompt // at most ownFailures, oldest first
}

type failedPrompt struct {
	prompt uint64
	at     time.Time
}

// add takes in a failure, and says whether that is one too many.
func (f *ownFault) add(now time.Time, prompt []int32) bool {
	if len(f.failed) == 0 {
		f.seed = maphash.MakeSeed()
	}
	var h maphash.Hash
	h.SetSeed(f.seed)
	for _, token := range prompt {
		maphash.WriteComparable(&h, token)
	}
	this := failedPrompt{h.Sum64(), now}
	kept := f.failed[:0]
	for _, other := range f.failed {
		if now.Sub(other.at) < ownWindow && other.prompt != this.prompt {
			kept = append(kept, other)
		}
	}
	kept = append(kept, this)
	f.failed = kept
	return len(f.failed) >= ownFailures
}

// chore is what is done beside the steps for blocks that are not finite: finding out about
// a sequence that failed, before its owner hears of it, or overwriting blocks.
type chore struct {
	sequence *Sequence // nil: nobody waits
	finished scheduler.Finished
	scrub    []kvcache.BlockID
}

// begin has a chore done, in order, by one goroutine. d.mu is held. Once Run has ended
// nobody looks into the engine's pages any more.
func (d *Driver) begin(c chore) {
	if d.over {
		if c.sequence != nil {
			c.sequence.put(c.finished)
		}
		return
	}
	d.chores = append(d.chores, c)
	if len(d.chores) == 1 {
		d.choring.Go(d.doChores)
	}
}

// doChores does what there is to do.
func (d *Driver) doChores() {
	for {
		d.mu.Lock()
		next := d.chores[0]
		d.mu.Unlock()
		if next.sequence != nil {
			next.finished.Err = d.findOut(next.finished.ID, next.sequence.prompt, next.finished.Spoilt)
			next.sequence.put(next.finished)
		}
		if len(next.scrub) > 0 {
			d.scrub(next.scrub)
		}
		d.mu.Lock()
		d.chores = d.chores[1:]
		done := len(d.chores) == 0
		d.mu.Unlock()
		if done {
			return
		}
	}
}

// endChores waits for the chores there are. There are no others afterwards.
func (d *Driver) endChores() {
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
	d.choring.Wait()
}

// findOut says where what is not finite in a sequence began, and notes whose fault it is.
func (d *Driver) findOut(id scheduler.SequenceID, prompt []int32, spoilt *scheduler.Spoilt) error {
	found := &NotFiniteError{NotFiniteError: engine.FindNotFinite(d.cfg.Engine, spoilt.Blocks, spoilt.Tokens)}
	if found.Layer >= 0 {
		found.Origin = spoilt.Origin(found.Position, d.Layout().BlockTokens)
	}
	d.cfg.Metrics.notFinite(found.Origin != "")
	d.cfg.Logger.Error("the logits of a sequence are not finite", "sequence", uint64(id), "layer", found.Layer, "position", found.Position, "kv_of", found.Origin, "error", found)
	if found.Origin == "" && d.fault.add(time.Now(), prompt) {
		d.cfg.Logger.Error("this worker is leaving", "error", ErrNotFinite)
		d.lose(ErrNotFinite)
	}
	return found
}

// scrubBytes is how much is written at once.
const scrubBytes = 1 << 20

// scrub overwrites blocks that nobody holds. If that fails, with the engine, they stay in
// quarantine.
func (d *Driver) scrub(blocks []kvcache.BlockID) {
	pages, layout := d.Pages(), d.Layout()
	atOnce := max(scrubBytes/layout.SliceBytes, 1)
	zeros := make([]byte, min(atOnce, len(blocks))*layout.SliceBytes)
	for layer := range layout.Layers {
		for first := 0; first < len(blocks); first += atOnce {
			some := blocks[first:min(first+atOnce, len(blocks))]
			if err := pages.Write(layer, some, zeros[:len(some)*layout.SliceBytes]); err != nil {
				d.cfg.Logger.Error("kv blocks that are not finite stay in quarantine", "blocks", len(blocks), "error", err)
				return
			}
		}
	}
	d.handle(scheduler.Scrubbed{Blocks: blocks})
}
