package simulate

import (
	"math/rand/v2"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// router is one router.
type router struct {
	cluster *Cluster
	host    *host
	core    *routing.Router
	timer   timer
	inbox   inbox[routing.Event]

	asking      map[string]*request
	connections map[routing.Ref]*connection
	number      uint64 // of the last connection
	told        uint64 // reports to the other routers
}

// connection is a router's with one process of a worker.
type connection struct {
	router      *router
	ref         routing.Ref
	process     *process // nil: there is none now
	there, back *pipe
	number      uint64
	redial      routing.Redial
	first, last *stream // those that are open, oldest first
	drawn       *tokens // that its process sends at the end of a step
	forgotten   bool
}

func (c *Cluster) newRouter(h *host) *router {
	config := c.config.Routing
	config.Router = h.name
	r := &router{
		cluster: c, host: h, asking: make(map[string]*request), connections: make(map[routing.Ref]*connection),
		core: routing.New(config, rand.New(rand.NewPCG(c.random.Uint64(), c.random.Uint64()))),
	}
	r.timer = timer{clock: &c.clock, of: r}
	return r
}

func (r *router) next() (time.Time, bool) { return r.core.Next() }
func (r *router) tick()                   { r.handle(routing.Tick{}) }

// handle gives an event to the policy, and does what it asks for.
func (r *router) handle(event routing.Event) {
	if !r.inbox.put(event) {
		return
	}
	for e, more := r.inbox.next(); more; e, more = r.inbox.next() {
		for _, action := range r.core.Handle(r.cluster.now, e) {
			r.act(action)
		}
		r.cluster.watch.routed(r)
	}
	r.timer.set()
}

func (r *router) act(action routing.Action) {
	switch a := action.(type) {
	case routing.Connect:
		if r.connections[a.Worker] == nil {
			n := &connection{router: r, ref: a.Worker}
			r.connections[a.Worker] = n
			n.dial()
		}
	case routing.Forget:
		if n := r.connections[a.Worker]; n != nil {
			n.forgotten = true
			delete(r.connections, a.Worker)
		}
	case routing.ListBlocks:
		r.list(a.Worker)
	case routing.Tell:
		r.told++
		a.Report.Origin = &controlv1.Origin{Id: r.host.name, Epoch: 1, Sequence: r.told}
		r.cluster.signals.RouterReports++
		r.cluster.publish(r.host, "", routing.RouterReported(a))
	case routing.Dispatch:
		r.cluster.signals.Decisions++
		if q := r.asking[a.ID]; q != nil {
			delete(r.asking, a.ID)
			q.dispatched(a)
		}
	case routing.Refuse:
		r.cluster.signals.Decisions++
		if q := r.asking[a.ID]; q != nil {
			delete(r.asking, a.ID)
			refusal := a.Refusal
			if a.ID != q.key {
				r.cluster.hedges.Refused++
			}
			q.handle(joining.Refused{Attempt: q.attemptOf(a.ID), Err: statusOf(&refusal)})
		}
	}
}

// dial connects, and asks who answers and what is in its prefix cache.
func (n *connection) dial() {
	c := n.router.cluster
	p := c.processOf(n.ref.ID, n.ref.Epoch)
	if n.forgotten {
		return
	}
	if p == nil || p.host.cut[n.router.host] {
		n.failed("nobody answers at its address")
		return
	}
	there, back := c.newPipe(n.router.host, p.host), c.newPipe(p.host, n.router.host)
	over := false // the attempt has failed or succeeded
	c.after(routing.DefaultConnectTimeout, func() {
		if !over && !n.forgotten { // a partition came in between
			there.broken, back.broken, over = true, true, true
			n.failed("deadline exceeded")
		}
	})
	// A round trip of TCP, one of HTTP/2's settings and Identify, and one of ListBlocks.
	there.send(messageBytes, func() {
		back.send(messageBytes, func() {
			there.send(messageBytes, func() {
				if p.dead {
					over = true
					n.failed("the connection was lost")
					return
				}
				blocks := p.listBlocks()
				back.send(messageBytes, func() {
					if n.forgotten {
						return
					}
					over = true
					n.router.number++
					n.process, n.there, n.back, n.number = p, there, back, n.router.number
					n.redial.Connected()
					p.connections = append(p.connections, n)
					if p.dead {
						n.lose()
						return
					}
					for _, part := range routing.Listed(n.ref, blocks) {
						n.router.handle(part)
					}
					n.router.handle(routing.Connected{Worker: n.ref, Record: p.record, Connection: n.number})
				})
			})
		})
	})
}

// failed is an attempt that failed: another follows.
func (n *connection) failed(why string) {
	n.router.handle(routing.ConnectFailed{Worker: n.ref, Why: why})
	n.router.cluster.after(n.redial.Failed(n.router.cluster.random), n.dial)
}

func (p *process) listBlocks() *workerv1.ListBlocksResponse {
	return &workerv1.ListBlocksResponse{Epoch: p.ref.Epoch, Sequence: p.events, BlockHashes: kvcache.HashValues(p.snapshot())}
}

// snapshot is the hash of every block that can be found at a process.
func (p *process) snapshot() []kvcache.Hash {
	if p.store != nil {
		return p.store.blocks.Hashes()
	}
	return p.core.Snapshot()
}

func (r *router) list(worker routing.Ref) {
	n := r.connections[worker]
	if n == nil || n.process == nil {
		r.handle(routing.BlocksListed{Worker: worker})
		return
	}
	p, over := n.process, false
	r.cluster.after(listTimeout, func() {
		if !over { // a partition came in between
			over = true
			r.handle(routing.BlocksListed{Worker: worker})
		}
	})
	n.there.send(messageBytes, func() {
		if p.dead {
			return // the router hears that the connection is lost
		}
		blocks := p.listBlocks()
		n.back.send(messageBytes+8*len(blocks.GetBlockHashes()), func() {
			if over {
				return
			}
			over = true
			for _, part := range routing.Listed(worker, blocks) {
				r.handle(part)
			}
		})
	})
}

// listTimeout is as of live routers.
const listTimeout = 5 * time.Second

// lose is the end of a connection at its router: the streams end, and it dials again.
func (n *connection) lose() {
	if n.process == nil {
		return
	}
	n.there.broken, n.back.broken = true, true
	n.process = nil
	for n.first != nil {
		n.first.finish(gone(n.ref.ID))
	}
	if n.forgotten {
		return
	}
	n.router.handle(routing.Disconnected{Worker: n.ref})
	n.dial()
}

// add puts a stream among those that are open.
func (n *connection) add(s *stream) {
	if s.before = n.last; n.last != nil {
		n.last.behind = s
	} else {
		n.first = s
	}
	n.last = s
}

// remove takes it from among them.
func (n *connection) remove(s *stream) {
	if s.before != nil {
		s.before.behind = s.behind
	} else {
		n.first = s.behind
	}
	if s.behind != nil {
		s.behind.before = s.before
	} else {
		n.last = s.before
	}
	s.before, s.behind = nil, nil
}
