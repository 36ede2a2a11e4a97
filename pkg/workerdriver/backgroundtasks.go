package workerdriver

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// backgroundTask is what is done beside the steps for blocks that are not finite: finding out about
// a sequence that failed, before its owner hears of it, or overwriting blocks.
type backgroundTask struct {
	inspect worker.Inspect
	scrub   []kvcache.BlockID
}

// add has a background task done, in order, by one goroutine. The loop is locked. Once Run has ended nobody
// looks into the engine's pages any more.
func (d *Driver) add(t backgroundTask) {
	if d.over {
		return
	}
	d.backgroundTasks = append(d.backgroundTasks, t)
	if len(d.backgroundTasks) == 1 {
		d.background.Go(d.doBackgroundTasks)
	}
}

// doBackgroundTasks does what there is to do.
func (d *Driver) doBackgroundTasks() {
	for {
		d.loop.Lock()
		next := d.backgroundTasks[0]
		d.loop.Unlock()
		if next.inspect.NotFinite != nil {
			d.handle(worker.Inspected{ID: next.inspect.ID, Err: d.findOut(next.inspect)})
		}
		if len(next.scrub) > 0 {
			d.scrub(next.scrub)
		}
		d.loop.Lock()
		d.backgroundTasks = d.backgroundTasks[1:]
		done := len(d.backgroundTasks) == 0
		d.loop.Unlock()
		if done {
			return
		}
	}
}

// endBackgroundTasks has the background tasks there are cut short, and waits for that. There are no others
// afterwards.
func (d *Driver) endBackgroundTasks() {
	d.endLooking()
	d.loop.Lock()
	d.over = true
	d.loop.Unlock()
	d.background.Wait()
}

// isOver says whether endBackgroundTasks was called.
func (d *Driver) isOver() bool {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.over
}

// findOut says where what is not finite in a sequence began. It does not look for that where nobody
// needs to know any more: of a worker that is lost or over, clients do not wait for it.
func (d *Driver) findOut(q worker.Inspect) *worker.NotFiniteError {
	found := &worker.NotFiniteError{NotFiniteError: engine.FindNotFinite(d.looking, d.cfg.Engine, q.NotFinite.Blocks, q.NotFinite.Tokens)}
	if found.Layer >= 0 {
		found.Origin = q.NotFinite.Origin(found.Position, d.Layout().BlockTokens)
	}
	d.cfg.Metrics.notFinite(found.Origin != "")
	d.cfg.Logger.Error("the logits of a sequence are not finite", "sequence", uint64(q.ID), "layer", found.Layer, "position", found.Position, "kv_of", found.Origin, "error", found)
	return found
}

// scrubBytes is how much is written at once.
const scrubBytes = 1 << 20

// scrub overwrites blocks that nobody holds. If that fails, with the engine, or the worker ends,
// they stay in quarantine.
func (d *Driver) scrub(blocks []kvcache.BlockID) {
	pages, layout := d.Pages(), d.Layout()
	atOnce := max(scrubBytes/layout.SliceBytes, 1)
	zeros := make([]byte, min(atOnce, len(blocks))*layout.SliceBytes)
	for layer := range layout.Layers {
		for first := 0; first < len(blocks); first += atOnce {
			if d.isOver() {
				return
			}
			some := blocks[first:min(first+atOnce, len(blocks))]
			if err := pages.Write(layer, some, zeros[:len(some)*layout.SliceBytes]); err != nil {
				d.cfg.Logger.Error("kv blocks that are not finite stay in quarantine", "blocks", len(blocks), "error", err)
				return
			}
		}
	}
	d.handle(scheduler.Scrubbed{Blocks: blocks})
}
