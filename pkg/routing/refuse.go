package routing

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// misses says whether the request's objective is out of reach on the workers
// chosen, where so much of others goes before it. A worker that has measured nothing
// yet is given the benefit of the doubt.
func (rt *Router) misses(s *search, decode, prefill *candidate, aheadMs float64) (Refusal, bool) {
	now, e, r := s.now, s.entry, s.request
	if r.Attempt > 0 {
		return Refusal{}, false
	}
	late := func(what, name string, always bool, predicted, limit, retry time.Duration) (Refusal, bool) {
		if e.alwaysLate = always; !always {
			rt.refusedHere(now)
		}
		limits := "slo." + name
		if e.defaultObjective {
			limits = "the " + name + " of class " + rt.config.DefaultClass + ","
		}
		advice := "retry later or ask for more time"
		if always {
			advice = "ask for more time"
		}
		return Refusal{codes.ResourceExhausted, api.ReasonSLOUnattainable, "",
			fmt.Sprintf("predicted %s %s exceeds %s %s; %s", what, predicted.Round(time.Microsecond), limits, limit, advice), max(retry, time.Second)}, true
	}
	first, fresh := cmp.Or(prefill, decode), e.workMs == 0 // who was let in is not refused for a doubt
	if fresh && first.measured && !e.observed {
		e.observed = true
		rt.observeInTime(e, first.computed())
	}
	judged := func(bool) {}
	if limit, _ := e.objective(&first.cost); limit > 0 {
		predicted, queue, always := now.Sub(r.Arrived), time.Duration(0), false
		if first.measured {
			predicted, queue = s.late(&first.cost, aheadMs), durationOf(first.queueMs+aheadMs)
			always = first.idle && queue == 0 || durationOf(rt.undisturbedMs(first, r)) > limit // without others too
		}
		// A prompt that is late also where none goes before it does not fare by who else is let in.
		if roomMs := s.roomMs(first, limit); first.measured && fresh && !always && first.prefillMs <= roomMs {
			level := rt.queue.shares[e.levelKey()]
			if !level.hasFew(r.Tenant) {
				s.longerMs = level.lengths.takenMs(first.prefillMs, roomMs) - first.prefillMs
			}
			judged = func(admitted bool) { level.lengths.judged(first.prefillMs, admitted) }
		}
		switch longer := predicted + durationOf(s.longerMs); {
		case predicted > limit:
			judged(false)
			return late("time to first token", "ttft", always, predicted, limit, queue)
		case longer > limit:
			judged(false)
			return late("time to first token of a longer prompt, of which too many are refused,", "ttft", false, longer, limit, queue)
		}
	}
	if _, limit := e.objective(&decode.cost); limit > 0 && decode.measured {
		factor := 1.
		if fresh {
			e.asksToken, factor = true, decode.doubtToken
			if aheadMs > 0 {
				factor = max(factor, rt.queue.tokenMargin.factorAt(s.now))
			}
		}
		if predicted := decode.lateToken(factor); predicted > limit {
			e.tokenLate = !fresh
			return late("time per output token", "tpot", durationOf(decode.aloneMs) > limit, predicted, limit, 0)
		}
	}
	judged(true)
	return Refusal{}, false
}

// roomMs is how long a prompt may take on a worker, for the first token to come within a limit where no other
// prompt goes before it.
func (s *search) roomMs(c *candidate, limit time.Duration) float64 {
	return milliseconds(limit-s.now.Sub(s.request.Arrived))/c.doubtFirst - c.stepLeftMs
}

// refusal is the answer if e cannot be served, for want of one of c, or of aggregatedPrefills, which may be nil.
func (rt *Router) refusal(e *entry, c, aggregatedPrefills *candidates) Refusal {
	switch c.fitness {
	case tooSmall:
		largest := 0
		for _, of := range [...]*candidates{c, aggregatedPrefills} {
			if of == nil || of.fitness != tooSmall {
				continue
			}
			for _, c := range of.fittest() {
				largest = max(largest, c.worker.blocks*c.worker.blockTokens)
			}
		}
		return Refusal{Code: codes.InvalidArgument, Reason: api.ReasonNeverFits, Field: "max_tokens",
			Message: fmt.Sprintf("prompt and completion need %d tokens of KV, but the largest %s holds %d; ask for fewer tokens",
				positions(&e.request, e.pool), e.seeks(), largest)}
	case unreachable:
		var again time.Duration
		if o := rt.paths[c.path]; o != nil {
			again = o.until.Sub(rt.now)
		}
		return Unreachable(c.path.from.ID, c.path.to.ID, c.broken, again)
	}
	r := rt.nobody(e)
	r.Message += " (" + c.reason
	if aggregatedPrefills != nil && e.prefillMayAggregate {
		r.Message += "; " + aggregatedPrefills.reason
	}
	r.Message += ")"
	return r
}

// anyOf reports whether some of the candidates are of a request's model.
func (rt *Router) anyOf(r *Request, c *candidates) bool {
	model := rt.model(r.Model)
	return slices.ContainsFunc(c.all, func(c candidate) bool { return c.worker.of(model) })
}

// nobody is the answer when no worker could ever take e.
func (rt *Router) nobody(e *entry) Refusal {
	what := e.seeks()
	if e.pool == controlv1.Role_ROLE_PREFILL {
		what += " that can send to a decode worker"
	}
	r := Refusal{Code: codes.Unavailable, Reason: api.ReasonNoWorkers, RetryAfter: time.Second,
		Message: fmt.Sprintf("no %s serves model %q", what, e.request.Model)}
	if e.request.Attempt > 0 {
		r.Reason = api.ReasonWorkerLost
		r.Message = fmt.Sprintf("a worker failed and there is no other %s for model %q", what, e.request.Model)
	}
	if id := rt.drained(e); id != "" {
		r.Message += fmt.Sprintf("; take %s back with 'tandem undrain %s', or start another", id, id)
	} else {
		r.Message += "; retry when one has registered"
	}
	return r
}

// drained is the last worker that was drained of those that e seeks, if all were that are connected;
// empty: there are others, or none.
func (rt *Router) drained(e *entry) (id string) {
	model := rt.model(e.request.Model)
	for _, w := range rt.order {
		if w.role != e.pool && !(e.prefillMayAggregate && w.takesAggregated && e.pool == controlv1.Role_ROLE_DECODE) || !w.of(model) {
			continue
		}
		switch {
		case w.draining:
			id = w.ref.ID
		case w.connected:
			return ""
		}
	}
	return cmp.Or(id, rt.lastLeft(e.pool, e.request.Model))
}

func (rt *Router) expired(now time.Time, e *entry) Refusal {
	waited := now.Sub(e.enqueued).Round(time.Millisecond)
	switch {
	case !e.request.Deadline.IsZero() && !now.Before(e.request.Deadline):
		return Refusal{Code: codes.DeadlineExceeded, Reason: api.ReasonDeadline,
			Message: fmt.Sprintf("the request's deadline passed after %s in the queue", waited)}
	case !e.noWorkerSince.IsZero():
		return rt.nobody(e)
	case e.request.TTFT > 0 && !e.defaultObjective && e.request.Attempt == 0 && e.workMs == 0 && now.Sub(e.request.Arrived) >= e.request.TTFT:
		return Refusal{codes.ResourceExhausted, api.ReasonSLOUnattainable, "",
			fmt.Sprintf("slo.ttft %s had passed before a worker could be chosen; ask for more time", e.request.TTFT), time.Second}
	case e.request.TTFT > 0 && !e.defaultObjective && e.request.Attempt == 0 && now.Sub(e.request.Arrived) >= e.request.TTFT:
		return Refusal{codes.ResourceExhausted, api.ReasonSLOUnattainable, "",
			fmt.Sprintf("no %s had capacity within slo.ttft %s; retry later or ask for more time", e.seeks(), e.request.TTFT), time.Second}
	}
	return Refusal{codes.ResourceExhausted, api.ReasonQueueTimeout, "",
		fmt.Sprintf("no %s had capacity within %s; retry later", e.seeks(), waited), max(waited/2, time.Second)}
}
