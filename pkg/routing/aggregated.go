package routing

import (
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// In mode auto a request is aggregated, both phases on one worker, where that costs less. The worker
// may be of either pool: a decode worker, or a prefill worker that takes aggregated requests.

// overloadLasts is how long after a refusal for want of the workers' time what a placement takes of
// it decides among those that meet the objective, and not whose tokens come first.
const overloadLasts = time.Second

// aggregatedMost is how many workers of each role bestAggregated looks at.
const aggregatedMost = 12

// aggregatedPrefills filters and scores the prefill workers that may do all of a request. A policy that
// predicts nothing uses them only while there are no decode workers. Of many, some will do if a
// decode worker may take the request.
func (rt *Router) aggregatedPrefills(s *search, decodes fitness) *candidates {
	workers := rt.groups().aggregatedPrefills
	if !rt.policy.waitsAtRouter && decodes <= later || rt.mode(s.request) == inferencev1.Mode_MODE_DISAGGREGATED || s.use == allDisaggregated && decodes <= later {
		workers = nil
	}
	n, away := len(workers), 0
	if decodes.usable() && n > aggregatedMost {
		model := rt.model(s.request.Model)
		away = n - rt.groups().aggregatedPrefillsOf[model.Name]
		workers = rt.sample(s, workers, aggregatedMost, func(w *worker) bool {
			return w.takesAggregated && w.connected && !w.draining && w.of(model) && !s.foreign(w)
		})
	}
	c := rt.filterSome(s, controlv1.Role_ROLE_DECODE, workers, nil)
	c.skipped = n - len(c.all)
	c.away = min(away, c.skipped)
	prompts, sent := 0., 0.
	if s.use != allAggregated {
		prompts, sent = rt.promptsPerMs(s.request.Model)
	}
	if rt.mode(s.request) != inferencev1.Mode_MODE_AUTO {
		prompts = 0
	}
	for i := range c.all {
		one := &c.all[i]
		one.reservedPlaces = rt.reservedPlacesFor(one.worker, sent)
		rt.costOf(s, controlv1.Role_ROLE_DECODE, one, rt.cached(s, one.worker), false)
		one.totalMs += rt.slowsPromptsMs(s, one, prompts)
		// Where costs are too close to tell apart, prefill workers are left to prompts.
		one.totalMs += one.promptMs*rt.config.NearBest + nearBestMs
	}
	return c
}

// bestAggregated is the best worker of either pool to do all of a request, and whether it is better
// than decode with prefill. prefill may be nil. It is reached after aheadMs of other requests, and
// there are so many senders like it.
func (rt *Router) bestAggregated(s *search, decodes, aggregatedPrefills *candidates, decode, prefill *candidate, aheadMs float64, senders int) (best *candidate, better bool) {
	behind := 0. // how long others wait who come after it, for each millisecond of a worker's time
	if senders > 0 {
		behind = float64(max(len(rt.queue.ids)+rt.heldByPeers()-1-s.ahead, 0)) / float64(senders)
	}
	// Who waits for a prefill worker waits for those that go before it there, and has those come
	// after it who come meanwhile.
	waits, after := aheadMs, behind
	if prefill != nil {
		waits = max(waits, s.aheadMs/float64(max(senders, 1)))
		prompts, _ := rt.promptsPerMs(s.request.Model)
		after += prompts * (waits + prefill.queueMs)
	}
	all := rt.lists.next()
	rt.addAggregatedDecodes(s, all, decodes, decode, behind)
	if aggregatedPrefills.fitness.usable() {
		for _, c := range aggregatedPrefills.fittest() {
			aggregated := *c
			aggregated.totalMs += after * (c.workMs + c.decodeMs)
			all.all = append(all.all, aggregated)
		}
	}
	overload := rt.now.Sub(rt.refusedForLoadAt) < overloadLasts
	if overload && prefill != nil && decode.placeMs > decode.placeCeilingMs {
		if idle := idlest(aggregatedPrefills); idle != nil { // nobody waits for a place where others have one
			return idle, true
		}
	}
	best = rt.pick(all.every())
	best.totalMs += best.delaysOthersMs
	if prefill == nil || best.crowded {
		return best, prefill == nil
	}
	places := decodes.usable() + aggregatedPrefills.usable()
	bestMisses := best.misses || best.missesAfter(s, s.waitMs(best, places, places))
	if misses := decode.misses || prefill.misses || prefill.missesAfter(s, aheadMs); misses != bestMisses {
		return best, misses && !(s.allPromptsOnPrefill && best.load.decoding > 0)
	}
	return best, !s.allPromptsOnPrefill && rt.aggregatedCostsLess(s, best, decode, prefill, overload, waits+after*prefill.workMs)
}

// addAggregatedDecodes adds to all the decode workers that may be the best for all of a request: those near
// the best for decoding are near it for all, too, and of many some will do. Others wait behind milliseconds for
// each of a worker's time.
func (rt *Router) addAggregatedDecodes(s *search, all, decodes *candidates, decode *candidate, behind float64) {
	if !decodes.fitness.usable() {
		return
	}
	fittest := decodes.fittest()
	first, limit := 0, math.Inf(1)
	if len(fittest) > aggregatedMost {
		first = rt.random.IntN(len(fittest))
	}
	if decode != nil && decode.fitness == decodes.fitness { // else it was chosen for its path alone
		limit = rt.nearLimit(decode)
	}
	for i := range fittest {
		c := fittest[(first+i)%len(fittest)]
		if len(fittest) > aggregatedMost && c.totalMs > limit {
			continue
		}
		all.all = append(all.all, candidate{finding: c.finding})
		aggregated := &all.all[len(all.all)-1]
		rt.costOf(s, controlv1.Role_ROLE_DECODE, aggregated, c.cached, false)
		if aggregated.totalMs += behind * aggregated.workMs; len(all.all) == aggregatedMost {
			break
		}
	}
}

// aggregatedCostsLess compares an aggregated placement with decode and prefill, for which others wait for
// waitsMs.
func (rt *Router) aggregatedCostsLess(s *search, best, decode, prefill *candidate, overload bool, waitsMs float64) bool {
	// A sequence that begins late gets more of a decode worker's steps, so that its tokens are in time:
	// the prompts there lose as much.
	lateMs := 0.
	if s.entry.tpot > 0 && decode.worker.keepsTPOT {
		lateMs = prefill.transferMs
	}
	if overload && !best.worker.takesAggregated && !best.misses && best.queueMs <= prefill.queueMs && best.promptMs+best.decodeMs <= (prefill.workMs+decode.decodeMs+lateMs)*(1+rt.config.NearBest) {
		return true
	}
	// Where costs are too close to tell apart, both pools are used.
	return best.totalMs+best.promptMs*rt.config.NearBest < decode.totalMs+prefill.totalMs+lateMs+waitsMs
}

// idlest is the cheapest of those workers that have a place and little to do, and meet the objective;
// nil: none does.
func idlest(all *candidates) (idle *candidate) {
	if !all.fitness.usable() {
		return nil
	}
	for _, c := range all.fittest() {
		if !c.misses && !c.crowded && c.queueMs <= c.ceilingMs && (idle == nil || c.totalMs < idle.totalMs) {
			idle = c
		}
	}
	return idle
}
