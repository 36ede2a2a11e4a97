package simulate

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// keepAlive is how long a connection lives over which nothing comes, not even answers to
// probes.
const keepAlive = rpc.KeepAlive + rpc.KeepAliveTimeout

// cut parts two hosts. What is sent between them waits, as TCP's retransmissions do, until
// they are joined again or both sides give up their connections.
func (c *Cluster) cut(a, b *host) {
	if a == b || a.cut[b] {
		return
	}
	a.cut[b], b.cut[a] = true, true
	c.cuts++
	number := c.cuts
	a.cutNumber[b] = number
	c.after(keepAlive, func() {
		if a.cut[b] && a.cutNumber[b] == number {
			c.disconnect(a, b)
		}
	})
}

// heal joins two hosts again. Connections that both sides still have go on.
func (c *Cluster) heal(a, b *host) {
	if !a.cut[b] {
		return
	}
	delete(a.cut, b)
	delete(b.cut, a)
	var ready []*pipe
	c.held = slices.DeleteFunc(c.held, func(p *pipe) bool {
		is := p.joins(a, b)
		if is {
			ready = append(ready, p)
		}
		return is
	})
	for _, p := range ready {
		held := p.held
		p.held = nil
		for _, e := range held {
			if !p.broken {
				e.happen()
			}
		}
	}
}

// disconnect ends all connections between two hosts, on both sides.
func (c *Cluster) disconnect(a, b *host) {
	c.held = slices.DeleteFunc(c.held, func(p *pipe) bool {
		if p.joins(a, b) {
			p.broken, p.held = true, nil
		}
		return p.broken
	})
	for _, w := range c.config.Workers {
		p := w.process
		if p == nil || p.host != a && p.host != b {
			continue
		}
		connections := p.connections
		p.connections = nil
		for _, n := range connections {
			if n.process != p || !joins(p.host, n.router.host, a, b) {
				p.connections = append(p.connections, n)
				continue
			}
			var ended []scheduler.SequenceID
			for s := n.first; s != nil; s = s.behind {
				if s.call != nil {
					ended = append(ended, s.call.id)
				}
			}
			n.lose()
			for _, id := range ended {
				p.handle(worker.Cancel{ID: id, Err: gone("the router")})
			}
		}
	}
	for _, s := range slices.Clone(c.sessions) {
		if !s.lost && joins(s.from.host, s.to.host, a, b) {
			s.lose(gone(s.to.ref.ID))
			s.closed()
		}
	}
}

// joins reports whether two hosts are a and b.
func joins(from, to, a, b *host) bool { return from == a && to == b || from == b && to == a }

func (p *pipe) joins(a, b *host) bool { return joins(p.from, p.to, a, b) }
