package simulate

import (
	"math"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/scaling"
)

// reactive is an autoscaler that knows one figure of a pool and its target for each worker, as the
// horizontal autoscaler of Kubernetes does: it wants as many workers as bring the figure to its
// target, changes nothing within a tolerance, goes up at once, and down to what it wanted most of
// lately.
type reactive struct {
	bounds    scaling.Range
	downAfter time.Duration
	began     time.Time
	wanted    []wish
}

// wish is what it wanted at a time.
type wish struct {
	at      time.Time
	workers int
}

// tolerance is by how much the figure may be off its target: Kubernetes' default.
const tolerance = 0.1

func newReactive(bounds scaling.Range, downAfter time.Duration) *reactive {
	return &reactive{bounds: bounds, downAfter: downAfter}
}

// next is how many workers there should be, of those that there are and of how many have their
// target with what there is.
func (r *reactive) next(now time.Time, workers int, needed float64) int {
	if r.began.IsZero() {
		r.began = now
	}
	want := workers
	if math.Abs(needed/float64(max(workers, 1))-1) > tolerance {
		want = int(math.Ceil(needed - 1e-9))
	}
	want = min(max(want, r.bounds.Min), r.bounds.Max)
	r.wanted = slices.DeleteFunc(r.wanted, func(w wish) bool { return now.Sub(w.at) > r.downAfter })
	most := want
	for _, w := range r.wanted {
		most = max(most, w.workers)
	}
	r.wanted = append(r.wanted, wish{now, want})
	if want < workers {
		if now.Sub(r.began) < r.downAfter {
			return workers
		}
		return min(most, workers)
	}
	return want
}

// byUtilisation is the size by the share of time in which the workers that serve computed since
// the last evaluation.
func (a *autoscaler) byUtilisation(r *reactive, pool string) int {
	workers, busy := 0, 0.0
	a.each(pool, &workers, func(p *process) {
		busy += min(float64(p.busy)/float64(a.Every), 1)
		p.busy = 0
	})
	return r.next(a.cluster.now, workers, busy/a.TargetUtilisation)
}

// byQueue is the size by the tokens of prompts that nobody has computed: those that wait at
// routers count for the pool that they wait for.
func (a *autoscaler) byQueue(r *reactive, pool string, role controlv1.Role) int {
	c, workers, tokens := a.cluster, 0, uint64(0)
	a.each(pool, &workers, func(p *process) {
		load := p.core.LoadReport(role)
		tokens += load.GetWaitingTokens() + load.GetRunningPromptTokens()
	})
	for _, router := range c.routers {
		for _, depth := range router.core.Queued(c.now)[c.spec.Name] {
			if depth.GetPool() == role {
				tokens += depth.GetTokens()
			}
		}
	}
	return r.next(c.now, workers, float64(tokens)/a.TargetTokens)
}

// each calls do for the workers of a pool that serve, and counts with them those that start.
func (a *autoscaler) each(pool string, workers *int, do func(*process)) {
	for _, w := range a.cluster.config.Workers {
		switch {
		case w.Pool != pool || pool == "":
		case w.starting != nil:
			*workers++
		case w.process != nil && !w.process.drains():
			*workers++
			do(w.process)
		}
	}
}
