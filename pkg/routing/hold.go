package routing

import (
	"cmp"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// A request stays at the router while it would wait at its worker for longer than the worker needs
// it: here it may still go elsewhere, be overtaken by what is more urgent, or be refused. The
// worker has enough to do until the router has heard what it did, and its next request is there.

// ceilingMs is how long a prompt may wait at a worker: as long as a report may be old, until the
// next one, and for a step.
func (s steps) ceilingMs() float64 {
	return 2*reportSpacingMs + s.besides + min(float64(s.several)*s.model.PerTokenMs, enough*s.besides)
}

const reportSpacingMs = float64(reportSpacing / time.Millisecond)

// placeCeilingMs is the same for a place in the batch, where sequences last so long: a prompt that
// is computed elsewhere has to be on its way before the place is free. A wait that is short beside
// what the sequence lasts is not worth one before the first token.
func (rt *Router) placeCeilingMs(w *worker, lifeMs float64) float64 {
	return reportSpacingMs + rt.apartMs + lifeMs*max(rt.config.NearBest, 1/float64(max(w.maxSequences, 1)))
}

// holds reports whether a request stays at the router although its workers would take it.
func (rt *Router) holds(s *search, decode, prefill *candidate) bool {
	e, first := s.entry, cmp.Or(prefill, decode)
	if !rt.chooses.late() || e.request.Attempt > 0 {
		return false
	}
	e.workMs = max(first.workMs, 1e-3)
	if e.behind && (prefill != nil || s.instead == nil) {
		return true
	}
	over, own := first.queueMs-first.ceilingMs, first.ownMs-first.ceilingMs
	if decode.measured {
		over, own = max(over, decode.placeMs-decode.placeCeilingMs), max(own, decode.ownPlaceMs-decode.placeCeilingMs)
	}
	if !first.measured || !(over > 0) {
		return false
	}
	if !(own > 0) { // it is held by what reports say alone, which may not be so
		if e.heldSince.IsZero() {
			e.heldSince = s.now
		}
		if s.now.Sub(e.heldSince) >= rt.config.ReportDoubt {
			return false
		}
	}
	rt.queue.soon(s.now.Add(max(milliseconds(over), leastHold)))
	return true
}

// leastHold bounds how often the queue is looked at because of time alone.
const leastHold = time.Millisecond

// begins reports whether a request that is held may follow: a worker has little left to do.
func (rt *Router) begins(now time.Time, w *worker) bool {
	if len(rt.queue.ids) == 0 || !rt.queue.held {
		return len(rt.queue.ids) > 0
	}
	model, known := w.measured()
	if !known {
		return true
	}
	var decoding estimate
	if w.role() == controlv1.Role_ROLE_DECODE {
		decoding = w.estimate(now, rt.config.LoadStale)
	}
	steps := w.steps(model, decoding.sequences, decoding.context)
	return w.waitMs(steps, now, rt.config.LoadStale, math.MaxInt32) <= steps.ceilingMs()
}
