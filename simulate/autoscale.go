package simulate

import (
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/scaling"
)

// Policies of scaling.
const (
	// ScaleDesired follows the desired size that routers compute.
	ScaleDesired = "desired"
	// ScaleUtilisation keeps the share of time in which workers compute near a target, as
	// autoscalers do by the use of processors.
	ScaleUtilisation = "utilisation"
	// ScaleQueue keeps the prompt tokens that wait, for each worker, near a target.
	ScaleQueue = "queue"
)

// ScalePolicies are all.
func ScalePolicies() []string { return []string{ScaleDesired, ScaleUtilisation, ScaleQueue} }

// Autoscale has pools follow the load.
type Autoscale struct {
	scaling.Config
	// Policy is one of ScalePolicies.
	Policy string
	// Prefill and Decode are the pools of these roles that are scaled; empty: there is none.
	Prefill, Decode string
	// Every is how often sizes are computed. StartTime is how long a worker takes from when it
	// is wanted until it serves.
	Every, StartTime time.Duration
	// TargetUtilisation and TargetTokens are those of the policies that have one: how much of its
	// time a worker computes, and how many tokens of prompts wait for it.
	TargetUtilisation, TargetTokens float64
}

// autoscaler does it.
type autoscaler struct {
	Autoscale
	cluster  *Cluster
	desired  *scaling.Scaler
	reactive scaling.Pools[*reactive]
}

func newAutoscaler(c *Cluster, a Autoscale) *autoscaler {
	return &autoscaler{
		Autoscale: a, cluster: c, desired: scaling.New(a.Config),
		reactive: scaling.Pools[*reactive]{
			Prefill: newReactive(a.Config.Bounds.Prefill, a.DownAfter), Decode: newReactive(a.Config.Bounds.Decode, a.DownAfter),
		},
	}
}

// begin begins to scale.
func (a *autoscaler) begin() {
	for _, w := range a.cluster.config.Workers {
		w.ends = w.ends || w.Pool != "" && (w.Pool == a.Prefill || w.Pool == a.Decode)
	}
	a.cluster.after(a.Every, a.evaluate)
}

// evaluate computes the sizes, and has the pools follow them.
func (a *autoscaler) evaluate() {
	c := a.cluster
	var sizes scaling.Sizes
	switch a.Policy {
	case ScaleUtilisation:
		sizes.Prefill.Desired = a.byUtilisation(a.reactive.Prefill, a.Prefill)
		sizes.Decode.Desired = a.byUtilisation(a.reactive.Decode, a.Decode)
	case ScaleQueue:
		sizes.Prefill.Desired = a.byQueue(a.reactive.Prefill, a.Prefill, controlv1.Role_ROLE_PREFILL)
		sizes.Decode.Desired = a.byQueue(a.reactive.Decode, a.Decode, controlv1.Role_ROLE_DECODE)
	default:
		var demands []scaling.Demand
		for _, r := range c.routers {
			demands = append(demands, r.core.Demand(c.now, c.spec.Name))
		}
		sizes = a.desired.Evaluate(c.now, scaling.Sum(demands...), c.routers[0].core.Mesh(c.spec.Name))
	}
	a.resize(a.Prefill, sizes.Prefill.Desired)
	a.resize(a.Decode, sizes.Decode.Desired)
	c.after(a.Every, a.evaluate)
}

// resize has a pool follow a size, unless its name is empty.
func (a *autoscaler) resize(pool string, to int) {
	if pool == "" {
		return
	}
	c := a.cluster
	if last, known := c.sizes[pool]; !known || last != to {
		c.sizes[pool] = to
		c.resizes = append(c.resizes, Resize{c.Elapsed(), pool, to})
	}
	c.scaleTo(pool, to, a.StartTime)
}

// serving are the workers of a pool that serve, or start.
func (c *Cluster) serving(pool string) (serve []*Worker) {
	for _, w := range c.config.Workers {
		if w.Pool == pool && (w.starting != nil || w.process != nil && !w.process.drains()) {
			serve = append(serve, w)
		}
	}
	return serve
}

// scaleTo has as many workers of a pool serve, or start: others serve once they have started; without a
// start time all do at once. Those that are too many leave when nothing is left of what they took, the
// last ones first.
func (c *Cluster) scaleTo(pool string, to int, startTime time.Duration) {
	serve := c.serving(pool)
	for _, w := range c.config.Workers {
		if len(serve) < to && w.Pool == pool && w.process == nil && w.starting == nil {
			c.startIn(w, startTime)
			serve = append(serve, w)
		}
	}
	wanted := min(max(to, 0), len(serve))
	for _, w := range serve[:wanted] {
		if w.starting != nil && startTime == 0 {
			c.startNow(w)
		}
	}
	for _, w := range slices.Backward(serve[wanted:]) {
		if w.starting != nil {
			c.stopStarting(w)
		} else {
			w.process.drain()
		}
	}
}

// startIn starts a worker that takes so long until it serves.
func (c *Cluster) startIn(w *Worker, startTime time.Duration) {
	start := &starting{}
	w.starting = start
	c.began(w)
	c.after(startTime, func() {
		if w.starting == start { // else it is not wanted any more, or something else has started it
			c.startNow(w)
		}
	})
}

// stopStarting takes the planned start of a worker back.
func (c *Cluster) stopStarting(w *Worker) {
	w.starting = nil
	c.stopped(w)
}

// starting is one start of a worker that does not serve yet.
type starting struct{ _ byte }

// began takes in that a worker is paid for from now on, and stopped that it is not any more.
func (c *Cluster) began(w *Worker) {
	if !w.running {
		w.running, w.since = true, c.now
	}
}

func (c *Cluster) stopped(w *Worker) {
	if w.running {
		w.running = false
		w.used += c.now.Sub(w.since)
	}
}

// Resize is a change of how many workers a pool is to have.
type Resize struct {
	// At is counted from the start of the load.
	At   time.Duration
	Pool string
	To   int
}

// Resizes are all changes by the autoscaler, as they came.
func (c *Cluster) Resizes() []Resize { return c.resizes }

// WorkerTime is for how long workers ran since the load began, added up by pool, the time that
// they took to start included.
func (c *Cluster) WorkerTime() map[string]time.Duration {
	used := make(map[string]time.Duration)
	for _, w := range c.config.Workers {
		used[w.Pool] += w.used
		if w.running {
			used[w.Pool] += c.now.Sub(w.since)
		}
	}
	return used
}
