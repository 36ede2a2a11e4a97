package routing

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// A request whose first token is late may have a hedged attempt beside the first (pkg/joining). It is
// late when all but one in hedgeOne predictions of its role would have come true. The hedged attempt is
// refused where it could make matters worse: it takes a share of the requests at most, and only
// room that nobody else wants.

const (
	// hedgeOne: one in so many first tokens is late.
	hedgeOne = 20
	// hedgeLeast is how late is too short to be worth a hedged attempt.
	hedgeLeast = 5 * time.Millisecond
	// hedgesKept is how many hedged attempts may be saved for later, and hedgesLater how many of them
	// for first tokens that are still late when they are asked for again: many are a little late,
	// and few are very late, together.
	hedgesKept  = 10
	hedgesLater = 5
)

// Why there is no hedged attempt.
const (
	// HedgeBudget: there were as many as may be.
	HedgeBudget = "budget"
	// HedgeNoCapacity: no other worker would begin it at once.
	HedgeNoCapacity = "no_capacity"
)

// hedges are the hedged attempts that the requests so far allow.
type hedges struct {
	left float64
	late [2]trackRecord // of first tokens, on prefill and on decode workers
}

// allow takes in that a request was sent for the first time.
func (h *hedges) allow(share float64) { h.left = min(h.left+share, hedgesKept) }

// enough reports whether there may be another.
func (h *hedges) enough(again bool) bool { return h.left >= 1 && (again || h.left > hedgesLater) }

// hedgeAfter is how long after its dispatch a request is to be hedged; 0: it is not.
func (rt *Router) hedgeAfter(r *Request, first *candidate) time.Duration {
	if rt.config.HedgeShare <= 0 || !rt.policy.waitsAtRouter || r.Attempt > 0 || !first.measured {
		return 0
	}
	return max(durationOf(first.firstMs*rt.hedges.late[byRole(first.worker.role)].factor()), hedgeLeast)
}

// hedge answers Hedge.
func (rt *Router) hedge(now time.Time, e Hedge) {
	id := e.Request.ID
	refuse := func(why, message string) {
		rt.refuse(id, Refusal{Code: codes.ResourceExhausted, Reason: why, Message: message})
	}
	switch {
	case rt.running[id] != nil || rt.queue.ids[id] != nil || e.Request.Version == (Version{}):
		refuse(HedgeNoCapacity, "there is a hedged attempt already, or none to run beside")
		return
	case !rt.hedges.enough(e.Again) || rt.config.HedgeShare <= 0:
		refuse(HedgeBudget, fmt.Sprintf("hedged attempts are %v of the requests, the limit", rt.config.HedgeShare))
		return
	case len(rt.queue.ids) > 0 || rt.heldByPeers() > 0 || !rt.policy.waitsAtRouter:
		refuse(HedgeNoCapacity, "requests wait for workers")
		return
	}
	entry := rt.entry(now, e.Request)
	entry.version, entry.hedges = e.Request.Version, &e
	if result, refusal := rt.decideFor(now, entry, entry.version); !result.usable() {
		refuse(HedgeNoCapacity, cmp.Or(refusal.Message, "no other worker would begin it at once"))
		return
	}
	rt.hedges.left--
	rt.tenants.enter(e.Request.Tenant)
	rt.queue.sharesOf(entry.levelKey()).begin(e.Request.Tenant)
}

// hasRoom reports whether a hedged attempt would begin at once.
func hasRoom(decode, prefill *candidate) bool {
	first := cmp.Or(prefill, decode)
	return first.measured && first.fitness == fit && decode.fitness == fit && !decode.probe && first.queueMs <= first.prefillMs && decode.placeMs == 0
}
