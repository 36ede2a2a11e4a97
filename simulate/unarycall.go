package simulate

import (
	"fmt"
	"slices"
)

// unaryCall is a call of one process at another that is not answered.
type unaryCall struct {
	from *process
	lost func(error) // nil: it is over
}

// call has serve run at a process, which answers once. What the answer does is done here, unless this
// process is dead; lost is done instead if the other one is gone.
func (p *process) call(id string, epoch uint64, bytes int, serve func(to *process, answer func(func())), lost func(error)) {
	c := p.cluster
	to := c.processOf(id, epoch)
	if to == nil {
		c.after(c.config.Network.Latency, func() { lost(fmt.Errorf("nobody answers at %s", id)) })
		return
	}
	a := &unaryCall{from: p, lost: lost}
	to.unary = append(to.unary, a)
	there, back := c.newPipe(p.host, to.host), c.newPipe(to.host, p.host)
	there.send(bytes, func() {
		if to.dead {
			return // died has told, or does
		}
		serve(to, func(do func()) {
			back.send(messageBytes, func() {
				to.unary = slices.DeleteFunc(to.unary, func(o *unaryCall) bool { return o == a })
				if a.lost != nil && !p.dead {
					a.lost = nil
					do()
				}
			})
		})
	})
}

// fail ends a call that will not be answered.
func (a *unaryCall) fail(err error) {
	if lost := a.lost; lost != nil && !a.from.dead {
		a.lost = nil
		lost(err)
	}
}
