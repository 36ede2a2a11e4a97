package simulate

import (
	"slices"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// drain has a worker take nothing new and say so in its record. It leaves once nothing is
// left of what it took (depart), and runs on.
func (p *process) drain() {
	if p.draining {
		return
	}
	p.draining, p.departAt = true, p.cluster.now.Add(membership.DepartDelay)
	p.handle(scheduler.Drain{})
	p.announce(controlv1.WorkerState_WORKER_STATE_DRAINING)
	p.cluster.plan(p.departAt, p.depart)
}

// undrain takes drain back, also when the worker has left.
func (p *process) undrain() {
	if !p.draining {
		return
	}
	p.draining = false
	p.handle(scheduler.Undrain{})
	if p.left {
		p.left = false
		p.cluster.registered = append(p.cluster.registered, p)
	}
	p.announce(controlv1.WorkerState_WORKER_STATE_SERVING)
}

// announce changes the state in the worker's record.
func (p *process) announce(state controlv1.WorkerState) {
	p.record = proto.CloneOf(p.record) // routers have the one before
	p.record.State = state
	p.cluster.viewChanged()
}

// depart removes the record of a worker that drains and has nothing left.
func (p *process) depart() {
	if !p.draining || p.left || p.dead || p.cluster.now.Before(p.departAt) || p.core.Remaining() > 0 {
		return
	}
	p.left = true
	c := p.cluster
	c.registered = slices.DeleteFunc(c.registered, func(o *process) bool { return o == p })
	c.viewChanged()
}

// scale has as many workers of a pool serve as it says, the first ones: it starts them or
// takes their drain back, and drains the others.
func (c *Cluster) scale(pool string, to int) error {
	for _, w := range c.config.Workers {
		switch {
		case w.Pool != pool:
		case to > 0 && w.process == nil:
			to--
			if err := c.start(w); err != nil {
				return err
			}
		case to > 0:
			to--
			w.process.undrain()
		case w.process != nil:
			w.process.drain()
		}
	}
	return nil
}
