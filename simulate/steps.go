package simulate

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// errStep is the error of a step that the event "fail" hit.
var errStep = errors.New("the device failed")

// stepEnd is the end of the step that a process runs.
type stepEnd struct {
	process  *process
	done     scheduler.StepDone
	work     latency.StepWork
	measured time.Duration // as the worker measures it
}

// begin runs a step. It plans the end of the step and, if prompts are being transferred, the
// ends of its layers.
func (p *process) begin(run *scheduler.RunStep) {
	c := p.cluster
	began := c.at
	c.watch.stepping(p, run)
	out, err := p.engine.Step(context.Background(), run.Batch)
	if p.member.failing {
		p.member.failing, err = false, errStep
	}
	took := time.Duration(float64(out.Compute) * cmp.Or(p.member.Slow, 1))
	measured := took
	if p.member.unmeasured {
		measured = out.Compute
	}
	var sends bool
	for _, part := range run.Parts {
		if part.Prompt {
			call := p.calls.of(part.ID)
			sends = sends || call != nil && call.sending
		}
	}
	if sends {
		layers := &layersDone{process: p, run: run, began: began, took: took, order: c.planned}
		c.planned += uint64(p.layout.Layers)
		layers.plan()
	}
	p.busy += took
	p.ends = stepEnd{process: p, done: scheduler.StepDone{Tokens: out.Tokens, Accepted: out.Accepted, Compute: took, Err: err}, work: out.Work(run.Batch), measured: measured}
	c.soon.push(c.momentAt(began+int64(took)), &p.ends)
}

func (s *stepEnd) happen() {
	p := s.process
	if p.dead {
		return
	}
	p.inbox.begin()
	took := worker.StepTook{Work: s.work, Compute: s.measured}
	failed := s.done.Err != nil
	p.apply(p.core.HandleStepDone(p.cluster.now, s.done)) // this may begin the next step
	p.empty()
	if !failed && !p.dead {
		p.inbox.begin()
		p.apply(p.core.HandleStepTook(p.cluster.now, took))
		p.empty()
	}
	p.changed()
}

// layersDone is the end of each layer of a step in turn. It offers the layer's KV to transfers.
// Its moments keep the places in the order of events that they got when the step began.
type layersDone struct {
	process *process
	run     *scheduler.RunStep
	began   int64
	took    time.Duration
	order   uint64 // of the last event planned before the step
	layer   int    // the next layer
}

// plan plans the end of the next layer.
func (d *layersDone) plan() {
	at := d.began + int64(d.took*time.Duration(d.layer+1)/time.Duration(d.process.layout.Layers))
	d.process.cluster.soon.push(moment{at: at, order: d.order + uint64(d.layer) + 1}, d)
}

func (d *layersDone) happen() {
	p, run, layer := d.process, d.run, d.layer
	if p.dead {
		return
	}
	if d.layer++; d.layer < p.layout.Layers {
		d.plan()
	}
	for i, part := range run.Parts {
		if !part.Prompt {
			continue
		}
		c := p.calls.of(part.ID)
		if c == nil || !c.sending {
			continue
		}
		if first, end := worker.Unsent(part, c.held); first < end {
			c.offer(layer, first, run.Batch.Sequences[i].Blocks[first:end])
		}
		if layer == p.layout.Layers-1 {
			c.sent.Computed = p.cluster.now.Sub(c.opened)
		}
	}
}
