package routing

import (
	"cmp"
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// A request stays at the router while it would wait at its worker for longer than the worker needs
// it: here it may still go elsewhere, be overtaken by what is more urgent, or be refused. The
// worker has enough to do until the router has heard what it did, and its next request is there.

// ceilingMs is how long a prompt may wait at a worker: as long as a report may be old, until the
// next one, and for a step.
func (s steps) ceilingMs() float64 {
	return 2*reportSpacingMs + s.otherMs + min(float64(s.stepTokens)*s.tokenMs(), latency.PromptsPerBase*s.otherMs)
}

const reportSpacingMs = float64(api.ReportSpacing / time.Millisecond)

// placeCeilingMs is the same for a place in the batch, where sequences last so long: a prompt that
// is computed elsewhere has to be on its way before the place is free. A wait that is short beside
// what the sequence lasts is not worth one before the first token.
func (rt *Router) placeCeilingMs(w *worker, lifeMs float64) float64 {
	return reportSpacingMs + rt.disaggregatedPromptMs + lifeMs*max(rt.config.NearBest, 1/float64(max(w.maxSequences, 1)))
}

// holds reports whether a request stays at the router although its workers would take it.
func (rt *Router) holds(s *search, decode, prefill *candidate, aheadMs float64, firsts, decodes int) (stays bool) {
	e, first := s.entry, cmp.Or(prefill, decode)
	if e.barred {
		e.workMs = max(first.workMs, leastWorkMs)
		return true
	}
	if !rt.policy.waitsAtRouter || e.request.Attempt > 0 {
		return false
	}
	fresh := e.workMs == 0
	e.workMs = max(first.workMs, leastWorkMs)
	defer func() {
		if fresh && stays {
			e.waitMs = aheadMs + max(first.queueMs-first.ceilingMs, 0)
		}
	}()
	if e.behind && (prefill != nil || s.runnerUp == nil) {
		return true
	}
	// Requests of other routers that go before it take what is free, the next one the worker that is free first.
	peersMs := s.aheadAtPeersMs / float64(max(min(firsts, s.aheadAtPeers), 1))
	over, own := first.queueMs+peersMs-first.ceilingMs, first.ownMs-first.ceilingMs
	// Who was let in gets its first token in time, if need be before there is a place for the second.
	late := !fresh && first.missesAfter(s, lastChanceMs)
	if decode.measured && !late {
		placeMs := decode.placeMs
		if s.aheadAtPeers > 0 {
			placeMs = decode.waitForPlaceMs(decode.before+s.aheadAtPeers/decodes, decode.sequenceMs)
		}
		over, own = max(over, placeMs-decode.placeCeilingMs), max(own, decode.ownPlaceMs-decode.placeCeilingMs)
	}
	if !first.measured || !(over > 0) {
		return false
	}
	if !(own > 0) && s.doubts(&rt.config) { // it is held by what reports say alone, which may not be so
		return false
	}
	soonest(&rt.queue.due, s.now.Add(min(max(durationOf(over), leastHold), longestHold)))
	return true
}

// lastChanceMs is how long before its objective is out of reach a request stops waiting for a place.
const lastChanceMs = 10

// lookAhead says what goes before a request. When it comes, that is taken to be as long as it may
// be, by how well it was predicted: who is let in is not refused later.
func (rt *Router) lookAhead(s *search) {
	s.ahead, s.aheadMs = rt.queue.ahead(s.entry)
	s.aheadAtPeers, s.aheadAtPeersMs = rt.aheadAtPeers(s.entry)
	s.ahead, s.aheadMs = s.ahead+s.aheadAtPeers, s.aheadMs+s.aheadAtPeersMs
	s.doubt = 1
	if s.entry.workMs == 0 {
		s.doubt = rt.queue.waits.factorAt(s.now)
	}
}

// waitMs is how long a request waits at the router for those that go before it: for their prompts
// at the workers that compute them, or for their places in batches, of which there are so many.
func (s *search) waitMs(decode *candidate, firsts, decodes int) float64 {
	ms := s.aheadMs / float64(firsts)
	if before := decode.before + s.ahead/decodes; decode.measured && s.entry.workMs == 0 {
		counted := decode.placeCeilingMs
		if decode.promptHere { // its first token waits for the place, too, and firstMs has the wait at the worker
			counted = min(counted, decode.queueMs)
		}
		ms = max(ms, decode.waitForPlaceMs(before, decode.sequenceMs)-counted)
	}
	return max(ms, 0)
}

// waitsLateOne is of how many predicted waits one may be longer: then a request is refused that was
// let in, which is to be rare.
const waitsLateOne = 300

// waitsKept is how long what was learned of waits is kept before it is forgotten. One wait teaches little,
// so that more would be forgotten than is learned while they follow one another.
const waitsKept = time.Second

// waited takes in how long a request waited that goes now, or is given up.
func (rt *Router) waited(e *entry) {
	if e.waitMs <= 0 {
		return
	}
	gain := lateGain * 10 / float64(10+len(rt.queue.ids))
	rt.queue.waits.forget(rt.now, waitsKept)
	rt.queue.waits.observeBy(gain, waitsLateOne, durationOf(e.waitMs), rt.now.Sub(e.enqueued))
	margin := &rt.queue.tokenMargin // approximated as the others are (predict.go)
	margin.forget(rt.now, waitsKept)
	switch {
	case e.tokenLate:
		margin.late = min(margin.late+gain, mostLate)
	case e.asksToken:
		margin.late = max(margin.late-gain/waitsLateOne, 1)
	}
}

// leastHold and longestHold bound how often the queue is looked at because of time alone.
const (
	leastHold   = time.Millisecond
	longestHold = lastChanceMs / 2 * time.Millisecond
)

// begins reports whether a request that is held may follow: a worker has little left to do.
func (rt *Router) begins(now time.Time, w *worker) bool {
	if len(rt.queue.ids) == 0 || !rt.queue.allHeld {
		return len(rt.queue.ids) > 0
	}
	model, known := w.measured()
	if !known {
		return true
	}
	e := w.estimate(now, rt.config.LoadStale)
	steps := w.steps(model, rt.promptTokens(w.record.GetModel()), e.decoding, e.decodingContext)
	return w.waitMs(steps, now, w.fresh(now, rt.config.LoadStale), math.MaxInt32) <= steps.ceilingMs()
}
