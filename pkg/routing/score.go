package routing

import (
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// cost is what a request is predicted to cost on a worker. Times are milliseconds.
type cost struct {
	measured bool   // what steps take is, and not assumed
	cached   int    // tokens of the prompt that it holds
	uncached int    // those that it lacks
	source   source // block store that has more of the prompt
	fetched  int    // tokens predicted to come from there

	queueMs    float64 // to compute what is there already
	prefillMs  float64 // to compute the prompt
	transferMs float64 // on a decode worker that gets the prompt's KV instead: to send what it lacks
	firstMs    float64 // to the first token: the sum of these
	tpotMs     float64 // an output token
	totalMs    float64 // to the first token, and for as many output tokens as count
}

// score predicts what a request costs on each candidate. Those that may not take it are
// scored too: operators are shown what they would have cost.
func (rt *Router) score(s *search, role controlv1.Role, all []candidate) {
	s.unmeasured = nil
	if rt.config.OmitCandidates {
		for i := range all {
			all[i].cost = rt.cost(s, role, all[i].worker)
		}
		return
	}
	s.record.Candidates = slices.Grow(s.record.Candidates, len(all))
	for i := range all {
		c := &all[i]
		c.cost = rt.cost(s, role, c.worker)
		c.record = &controlv1.Candidate{
			WorkerId: c.worker.ref.ID, Role: role, Excluded: c.reason,
			QueueMs: c.queueMs, PrefillMs: c.prefillMs, TpotMs: c.tpotMs, CostMs: c.totalMs,
			CachedTokens: uint32(max(c.cached, 0)), FetchTokens: uint32(c.fetched), InFlight: uint32(len(c.worker.own)),
		}
		s.record.Candidates = append(s.record.Candidates, c.record)
	}
}

func (rt *Router) cost(s *search, role controlv1.Role, w *worker) cost {
	r, load := s.request, w.estimate(s.now, rt.config.LoadStale)
	step, measured := w.measured()
	// What an idle worker measured long ago may have been a bad moment. Without
	// work it would never learn better.
	if idle := load.sequences == 0 && s.now.Sub(w.usedAt) >= revisitAfter; !measured || idle {
		if unmeasured := rt.unmeasured(s, role); !measured || slower(step, unmeasured) {
			step = unmeasured
		}
	}
	c := cost{measured: step.Samples > 0, cached: rt.cached(s, w)}
	c.uncached = r.Tokens - c.cached
	if role == controlv1.Role_ROLE_DECODE && rt.disaggregates(r, c.uncached) {
		c.transferMs = rt.transferMs(w, c.uncached)
	} else {
		c.queueMs = w.waitMs(step, s.now, rt.config.LoadStale, c.uncached)
		if role == controlv1.Role_ROLE_PREFILL {
			c.source = rt.source(s, w, c.cached)
		}
		c.prefillMs, c.fetched = w.prefillMs(step, r.Tokens, c.cached, c.source)
	}
	c.firstMs = c.queueMs + c.prefillMs + c.transferMs
	c.totalMs = c.firstMs
	if role == controlv1.Role_ROLE_DECODE {
		c.tpotMs = step.BaseMs + step.PerTokenMs*float64(load.sequences+1) + step.PerContextTokenMs*float64(load.context+r.Tokens)
		c.totalMs += c.tpotMs * float64(min(r.MaxNew, rt.config.TPOTHorizonTokens))
	}
	return c
}

// waitMs is how long a prompt waits of which the worker lacks so many tokens: for those that come
// before it, and for the step that is being computed. A report comes when a step begins.
func (w *worker) waitMs(step latency.Model, now time.Time, stale time.Duration, lacks int) float64 {
	ms := w.compute(step, w.ahead(now, stale, lacks), 0)
	if w.fresh(now, stale) {
		ms -= float64(now.Sub(w.loadAt)) / float64(time.Millisecond)
	}
	return max(ms, 0)
}

// unmeasured is the step time of a worker of the role that has measured nothing.
func (rt *Router) unmeasured(s *search, role controlv1.Role) latency.Model {
	if s.unmeasured == nil {
		step := rt.unmeasuredStep(role, s.version)
		s.unmeasured = &step
	}
	return *s.unmeasured
}

// transferMs is how long it takes to send KV of so many tokens to or from a worker.
func (rt *Router) transferMs(w *worker, tokens int) float64 {
	return float64(tokens) * w.bytesPerToken / rt.config.TransferBytesPerSecond * 1000
}

// revisitAfter is how long a worker may be idle because of what it measured,
// before it is given a chance to measure anew.
const revisitAfter = 10 * time.Second

// slower reports whether steps take longer by a than by b.
func slower(a, b latency.Model) bool {
	return a.BaseMs+a.PerTokenMs > b.BaseMs+b.PerTokenMs || a.PerContextTokenMs > b.PerContextTokenMs
}
