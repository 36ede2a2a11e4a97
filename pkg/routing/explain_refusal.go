package routing

import (
	"cmp"
	"fmt"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// noteLack notes what a request waits for, or is refused for, that no worker of those that were looked
// at can take; prefills is nil if it lacks a decode worker.
func (rt *Router) noteLack(s *search, decodes, prefills *candidates) {
	e, of := s.entry, cmp.Or(prefills, decodes)
	if of.fitness == later {
		if e.waitsFor != "" {
			return
		}
		e.waitsFor = of.reason
		if fittest := of.fittest(); len(fittest) > 0 {
			c := fittest[0]
			e.waitsFor = c.worker.ref.ID + ": " + c.reason + rt.occupants(c.worker)
		}
		return
	}
	if rt.config.OmitCandidates {
		return
	}
	e.refused = s.record
	e.refused.Reason = "no worker: " + short(of.reason, 2*reasonBytes)
	e.refused.Candidates, e.refused.Others = s.shown(decodes, nil, prefills, nil)
}

// noteMiss notes of a request that is refused for its objective what its first token would wait
// for.
func (rt *Router) noteMiss(s *search, decodes, prefills *candidates, decode, prefill *candidate, aheadMs float64) {
	if rt.config.OmitCandidates {
		return
	}
	e, d, first := s.entry, s.record, cmp.Or(prefill, decode)
	e.refused = d
	d.Candidates, d.Others = s.shown(decodes, decode, prefills, prefill)
	d.TpotMs = decode.tpotMs
	elapsedMs := milliseconds(s.now.Sub(e.request.Arrived))
	if !first.measured {
		d.Reason = fmt.Sprintf("%.1f ms had passed, and no worker has been measured yet", elapsedMs)
		return
	}
	d.TtftMs = milliseconds(s.late(&first.cost, aheadMs))
	limit, _ := e.objective(&first.cost)
	if limit == 0 || d.TtftMs+s.longerMs <= milliseconds(limit) {
		d.Reason = fmt.Sprintf("a token would take %.1f ms on %s with its other sequences, and %.1f ms alone%s",
			decode.tpotMs, decode.worker.ref.ID, decode.aloneMs, rt.occupants(decode.worker))
		return
	}
	d.Reason = fmt.Sprintf("of %.1f ms to the first token, %.1f ms had passed, %.1f ms would go to %d requests that go first, %.1f ms to what %s has%s, %.1f ms to the prompt, and %.1f ms are by how much predictions there are exceeded",
		d.TtftMs, elapsedMs, aheadMs, s.ahead, first.queueMs, first.worker.ref.ID, rt.occupants(first.worker),
		max(first.firstMs-first.queueMs, 0), max(d.TtftMs-elapsedMs-aheadMs-first.firstMs, 0))
	if d.TtftMs <= milliseconds(limit) {
		d.Reason += fmt.Sprintf("; prompts that take %.1f ms longer would be late, and more of those are refused already", s.longerMs)
	}
}

// outwaited is the decision on a request whose wait is over.
func (e *entry) outwaited(now time.Time) *controlv1.Decision {
	if e.waitsFor == "" {
		return nil
	}
	return &controlv1.Decision{Reason: e.waitedFor(now.Sub(e.enqueued))}
}

func (e *entry) waitedFor(d time.Duration) string {
	return fmt.Sprintf("it waited %.1f ms at the router: %s", milliseconds(d), e.waitsFor)
}

// occupants says whose requests a worker has, as far as they are this router's.
func (rt *Router) occupants(w *worker) string {
	counts := make(map[string]int)
	total, most := 0, ""
	for id := range w.own {
		d := rt.running[id]
		if d == nil {
			continue
		}
		total++
		counts[d.tenant]++
	}
	for tenant, n := range counts {
		if most == "" || cmp.Or(cmp.Compare(n, counts[most]), cmp.Compare(most, tenant)) > 0 {
			most = tenant
		}
	}
	if total == 0 {
		return ""
	}
	if rt.config.HideTenants {
		return fmt.Sprintf(" (requests of this router there: %d)", total)
	}
	return fmt.Sprintf(" (requests of this router there: %d, most of tenant %q: %d)", total, short(most, 64), counts[most])
}
