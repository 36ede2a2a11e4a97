package routing

import (
	"fmt"
	"math"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// share is what one request takes of a worker.
type share struct {
	at      time.Time
	tokens  int // still to compute before its first token
	blocks  int
	context int
	done    bool
}

func (w *worker) add(id string, s *share) {
	w.usedAt = s.at
	w.own[id] = s
	w.recent = append(w.recent, s)
	w.total.tokens += s.tokens
	w.total.blocks += s.blocks
	w.total.context += s.context
}

// computed says that a request's prompt needs no more work here.
func (w *worker) computed(id string) {
	if s, ok := w.own[id]; ok {
		w.total.tokens -= s.tokens
		s.tokens = 0
	}
}

func (w *worker) remove(id string) {
	s, ok := w.own[id]
	if !ok {
		return
	}
	delete(w.own, id)
	s.done = true
	w.total.tokens -= s.tokens
	w.total.blocks -= s.blocks
	w.total.context -= s.context
	if len(w.own) == 0 {
		w.recent = nil
	}
}

// doubling is how long to leave something alone that has failed times before.
func doubling(least time.Duration, times int, most time.Duration) time.Duration {
	return min(least<<min(times, 10), most)
}

// report takes in a load report, which contains what was sent some time before it. It says
// whether the worker is less busy than the router believed.
func (w *worker) report(now time.Time, report *controlv1.LoadReport, config Config) (more bool) {
	before := w.estimate(now, config.LoadStale)
	resumed := w.load != nil && now.Sub(w.loadAt) > config.LoadStale/2
	w.read(report)
	w.loadAt = now
	goesOn := w.reported(now, report, resumed)
	kept := w.recent[:0]
	for _, s := range w.recent {
		if !s.done && now.Sub(s.at) < config.ReportLag {
			kept = append(kept, s)
		}
	}
	clear(w.recent[len(kept):])
	w.recent = kept
	after := w.estimate(now, config.LoadStale)
	return goesOn || after.sequences < before.sequences || after.free > before.free
}

// fresh reports whether the last load report is to be believed.
func (w *worker) fresh(now time.Time, stale time.Duration) bool {
	return w.load != nil && now.Sub(w.loadAt) <= stale
}

// silent reports that a worker, connected for long enough, has not reported its
// load for a while: its process may hang although its connection works.
func (w *worker) silent(now time.Time, stale time.Duration) bool {
	return !w.fresh(now, stale) && now.Sub(w.connectedAt) > stale && !w.distrusted(now)
}

// estimate is the load of a worker as the router believes it to be now.
type estimate struct {
	sequences int // running and waiting
	tokens    int // to compute before the first token of those that wait
	context   int // tokens of context
	free      int // blocks
}

// estimate combines the last report, if it is fresh, with what this router sent
// since; without one, it is this router's own account.
func (w *worker) estimate(now time.Time, stale time.Duration) estimate {
	if !w.fresh(now, stale) {
		return w.account()
	}
	e := w.reads
	for _, s := range w.recent {
		if !s.done {
			e.sequences++
			e.tokens += s.tokens
			e.context += s.context
			e.free -= s.blocks
		}
	}
	// Own requests are there, whatever a report says that overtook them.
	e.sequences = max(e.sequences, len(w.own))
	return e
}

// account is the load by this router's own requests alone.
func (w *worker) account() estimate {
	return estimate{len(w.own), w.total.tokens, w.total.context, w.blocks - w.total.blocks}
}

// atMost is v within a limit, unless that is 0: then the worker states none.
func atMost(v, limit uint64) uint64 {
	if limit == 0 {
		return v
	}
	return min(v, limit)
}

func clampInt(v uint64) int { return int(min(v, math.MaxInt32)) }

// full says why a sequence of so many blocks does not fit now; empty: it does.
func (w *worker) full(e estimate, blocks int) string {
	if limit := w.maxSequences + w.maxWaiting; limit > 0 && e.sequences >= limit {
		return fmt.Sprintf("full: %d of %d sequences", e.sequences, limit)
	}
	if w.blocks > 0 && blocks > e.free {
		return fmt.Sprintf("full: %d blocks needed, %d free", blocks, max(e.free, 0))
	}
	return ""
}
