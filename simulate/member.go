package simulate

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// drain has a worker take nothing new and say so in its record. It leaves once nothing is
// left of what it took (depart), and runs on.
func (p *process) drain() {
	if !p.leaving.Begin(p.cluster.now) {
		return
	}
	p.refuse(true)
	p.announce()
	p.cluster.plan(p.leaving.DepartAt(), p.depart)
}

// undrain takes drain back, also when the worker has left.
func (p *process) undrain() {
	was, left := p.leaving.Undo()
	if !was {
		return
	}
	p.refuse(false)
	if left {
		p.cluster.registered = append(p.cluster.registered, p)
	}
	p.announce()
}

// refuse has it take nothing new from now on, or take it again.
func (p *process) refuse(refuse bool) {
	switch {
	case p.store != nil:
		p.store.draining = refuse
		p.depart()
	case refuse:
		p.handle(scheduler.Drain{})
	default:
		p.handle(scheduler.Undrain{})
	}
}

// remaining is how much is left of what it took.
func (p *process) remaining() int {
	if p.store != nil {
		return p.store.moving
	}
	return p.core.Remaining()
}

// drains reports whether it takes nothing new, or has left.
func (p *process) drains() bool { return p.leaving.State() != membership.Serving }

// announce says in the worker's record whether it drains.
func (p *process) announce() {
	p.record = proto.CloneOf(p.record) // routers have the one before
	p.record.State = p.leaving.WorkerState()
	p.cluster.viewChanged()
}

// depart removes the record of a worker that drains and has nothing left.
func (p *process) depart() {
	if p.dead || !p.leaving.Due(p.cluster.now) || p.remaining() > 0 {
		return
	}
	p.leaving.Depart()
	c := p.cluster
	c.registered = slices.DeleteFunc(c.registered, func(o *process) bool { return o == p })
	c.viewChanged()
	if p.member.ends {
		p.die()
	}
}
