package workerdriver

import (
	"context"

	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// act does what one action asks for. The loop is locked.
func (d *Driver) act(action worker.Action) {
	switch a := action.(type) {
	case *scheduler.RunStep:
		if d.over { // nobody computes any more
			d.answers = append(d.answers, scheduler.StepDone{Err: context.Canceled})
			return
		}
		d.steps <- d.nextStep(*a)
	case *scheduler.BlocksChanged:
		if d.cfg.BlocksChanged != nil {
			d.lastEvent = d.cfg.BlocksChanged(d.traces.cause, a.Stored, a.Removed)
		}
	case *scheduler.Sampled:
		if s := d.sequences[a.ID]; s != nil {
			s.putToken(a)
		}
	case worker.OfSequence:
		d.deliver(a.Sequence(), a)
	case scheduler.Save:
		d.cfg.Save(a)
	case scheduler.StopSave:
		d.cfg.StopSave(a.ID)
	case scheduler.Scrub:
		d.add(backgroundTask{scrub: a.Blocks})
	case worker.Inspect:
		if d.over { // nobody looks into the engine's pages any more
			d.answers = append(d.answers, worker.Inspected{ID: a.ID, Err: d.findOut(a)})
			return
		}
		d.add(backgroundTask{inspect: a})
	case worker.Fault:
		d.cfg.Logger.Error("this worker is leaving", "error", worker.ErrNotFinite)
		d.lose(worker.ErrNotFinite)
	case worker.Stalled:
		d.deliver(a.ID, scheduler.Preempted{ID: a.ID})
	case worker.Gone:
		delete(d.sequences, a.ID)
		d.traces.remove(a.ID)
	default:
		d.count(action)
	}
}

// count counts what became of a sequence, and tells its owner if it is bare.
func (d *Driver) count(action worker.Action) {
	var id scheduler.SequenceID
	switch a := action.(type) {
	case scheduler.Reserved:
		id = a.ID
	case scheduler.PromptScored:
		id = a.ID
	case scheduler.Started:
		if id = a.ID; d.sequences[id].clearPreempted() { // it was preempted before it had started
			d.cfg.Metrics.resumed(a.Waited)
		}
	case scheduler.Preempted:
		id = a.ID
		d.cfg.Metrics.preempted()
		d.sequences[id].preempted = true
	case scheduler.Resumed:
		id = a.ID
		d.cfg.Metrics.resumed(a.Waited)
		d.sequences[id].clearPreempted()
	case scheduler.Finished:
		if id = a.ID; !d.sequences[id].restore { // one that restores is no request
			d.cfg.Metrics.finished(a.Reason)
		}
	case scheduler.Refused:
		if id = a.ID; !d.sequences[id].restore {
			d.cfg.Metrics.refused()
		}
	default:
		return
	}
	if d.sequences[id].bare {
		d.deliver(id, action)
	}
}

func (d *Driver) deliver(id scheduler.SequenceID, action worker.Action) {
	if s := d.sequences[id]; s != nil {
		s.put(action)
	}
}
