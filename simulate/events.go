package simulate

import (
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/membership"
)

// Event is something that happens to a cluster while it serves.
type Event struct {
	// At is counted from the start of the load.
	At time.Duration
	// Do is one of the actions below.
	Do Action
}

// Action is what an Event does.
type Action interface{ to(c *Cluster) error }

type (
	// Kill ends a worker without a word.
	Kill struct{ Worker string }
	// Start starts a worker that does not run.
	Start struct{ Worker string }
	// Drain has a worker take nothing new and leave when it is idle.
	Drain struct{ Worker string }
	// Undrain takes a Drain back.
	Undrain struct{ Worker string }
	// Slow has a worker's steps take Factor times as long; 1 is as its profile says. Unmeasured:
	// the worker does not notice, so that its reports do not tell.
	Slow struct {
		Worker     string
		Factor     float64
		Unmeasured bool
	}
	// Cut parts each host of one group from each of the other.
	Cut struct{ Between [2]Hosts }
	// Heal joins them again.
	Heal struct{ Between [2]Hosts }
	// Fail has the next step of a worker fail.
	Fail struct{ Worker string }
	// Corrupt damages the next chunk of KV that a worker receives.
	Corrupt struct{ Worker string }
	// Mute loses what a worker publishes over NATS.
	Mute struct{ Worker string }
	// Unmute ends that.
	Unmute struct{ Worker string }
	// EtcdAway begins an outage of etcd: nothing changes in what it lists, and no lease ends.
	EtcdAway struct{}
	// EtcdBack ends it.
	EtcdBack struct{}
	// Call calls a function, which may read the cluster and change nothing.
	Call func(*Cluster)
	// Scale has so many workers of a pool serve; the others drain.
	Scale struct {
		Pool string
		To   int
	}
)

func (e Kill) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) {
		if w.process != nil {
			w.process.die()
		} else {
			c.stopStarting(w)
		}
	})
}

func (e Start) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) {
		if w.process == nil {
			c.startNow(w)
		}
	})
}

func (e Drain) to(c *Cluster) error { return c.running(e.Worker, (*process).drain) }

func (e Undrain) to(c *Cluster) error { return c.running(e.Worker, (*process).undrain) }

func (e Slow) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) { w.Slow, w.unmeasured = e.Factor, e.Unmeasured })
}

func (e Fail) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) { w.failing = w.process != nil })
}

func (e Corrupt) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) { w.corrupting = w.process != nil })
}

func (e Mute) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) { w.muted = true })
}

func (e Unmute) to(c *Cluster) error {
	return c.with(e.Worker, func(w *Worker) { w.muted = false })
}

func (e Call) to(c *Cluster) error {
	e(c)
	return nil
}

func (EtcdAway) to(c *Cluster) error {
	if !c.etcdAway {
		c.etcdAway = true
		c.view(false)
	}
	return nil
}

func (EtcdBack) to(c *Cluster) error {
	if !c.etcdAway {
		return nil
	}
	c.etcdAway = false
	expiring := c.expiring
	c.expiring = nil
	for _, p := range expiring { // etcd counts a lease anew
		c.after(membership.DefaultLeaseTTL, func() { c.expire(p) })
	}
	c.view(true)
	return nil
}

func (e Cut) to(c *Cluster) error {
	c.each(e.Between, c.cut)
	return nil
}

func (e Heal) to(c *Cluster) error {
	c.each(e.Between, c.heal)
	return nil
}

// Workers that drain go on before others start.
func (e Scale) to(c *Cluster) error {
	missing := e.To - len(c.serving(e.Pool))
	for _, w := range c.config.Workers {
		if missing > 0 && w.Pool == e.Pool && w.process != nil && w.process.drains() {
			w.process.undrain()
			missing--
		}
	}
	c.scaleTo(e.Pool, e.To, 0)
	return nil
}

// with calls do with a worker.
func (c *Cluster) with(id string, do func(*Worker)) error {
	for _, w := range c.config.Workers {
		if w.ID == id {
			do(w)
			return nil
		}
	}
	return fmt.Errorf("there is no worker %q", id)
}

// running calls do with the process of a worker, if it runs.
func (c *Cluster) running(id string, do func(*process)) error {
	return c.with(id, func(w *Worker) {
		if w.process != nil {
			do(w.process)
		}
	})
}

// each calls do with each host of one group and each of the other.
func (c *Cluster) each(between [2]Hosts, do func(a, b *host)) {
	for _, a := range between[0] {
		for _, b := range between[1] {
			do(c.host(a), c.host(b))
		}
	}
}
