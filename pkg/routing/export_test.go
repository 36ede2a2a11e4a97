package routing

import "time"

// Anew is what Next and BlockKeys say when nothing is kept of earlier calls.
func (rt *Router) Anew(model string, version Version) (time.Time, bool, []BlockKey) {
	rt.workersDue.known, rt.grouped = false, nil
	kept := rt.waking
	rt.waking = waking{}
	at, due := rt.Next()
	rt.waking = kept
	return at, due, rt.BlockKeys(model, version)
}

// Expecting is how many requests' prompts are expected in prefix caches and not computed, and
// whether what is kept of them adds up.
func (rt *Router) Expecting() (requests int, adds bool) {
	x := &rt.expected
	blocks, all := 0, 0
	for first, alike := range x.byBlock {
		for _, e := range alike {
			all++
			if blocks += len(e.hashes) - e.from; e.hashes[e.from] != first || e.done && rt.workers[e.worker.ref.ID] == nil {
				return len(x.byRequest), false
			}
		}
	}
	for _, w := range rt.workers {
		all -= len(w.expected)
	}
	return len(x.byRequest), blocks == x.blocks && all == len(x.byRequest)
}

// Others is how many requests of other routers count on a worker, and their prompt tokens.
func (rt *Router) Others(ref Ref) (requests, tokens int) {
	others, _ := rt.worker(ref).ofOtherRouters()
	return others.count, others.tokens
}

// Charged is how many blocks of a worker this router's requests are charged with.
func (rt *Router) Charged(ref Ref) int { return rt.worker(ref).total.blocks }

// ToldLasts is how long what another router says counts.
const ToldLasts = toldLasts

// Overloaded is whether requests were refused for want of time lately.
func (rt *Router) Overloaded() bool { return rt.overloaded() }

// Outcomes are how many requests of a model count for the present use of the pools, and how many of them as in time.
func (rt *Router) Outcomes(model string) (came, inTime float64) {
	d := rt.demandFor(model)
	return d.outcomes[d.use].came, d.outcomes[d.use].inTime
}
