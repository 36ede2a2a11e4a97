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

// dispatched is a request that runs.
type dispatched struct {
	tenant, model   string
	level           levelKey  // whose shares it counts in
	most            int       // tokens that it may generate
	decode, prefill *worker   // prefill is nil in aggregated mode
	moves           int       // tokens whose KV is sent from the one to the other
	at, promptedAt  time.Time // when it was dispatched, and when its prompt was computed
	// first is the time from the one to the other and token that of each token after the first, as
	// predicted; 0: it was not.
	first, token time.Duration
	alone        bool // nothing was in the way of its prompt
	// plainFirst and plainToken are the same by what the workers report, however slow they are.
	plainFirst, plainToken time.Duration
	// outcome is what it counts as of a use of the pools; nil: it is not counted. Its first token is due at firstDue,
	// and each further one is to take eachToken; zero: any time.
	outcome   *outcome
	firstDue  time.Time
	eachToken time.Duration
}

// late reports whether a request that ends now was later than it asked for. Of few tokens, what the end of an answer
// takes is too much to tell.
func (d *dispatched) late(now time.Time, tokens int) bool {
	first := d.promptedAt
	if first.IsZero() {
		first = now
	}
	if !d.firstDue.IsZero() && first.After(d.firstDue) {
		return true
	}
	return d.eachToken > 0 && tokens >= tokensTell && now.Sub(first)/time.Duration(tokens-1) > d.eachToken
}

func (d *dispatched) workers() []*worker {
	if d.prefill == nil {
		return []*worker{d.decode}
	}
	return []*worker{d.decode, d.prefill}
}

// computes is the worker that computes the prompt.
func (d *dispatched) computes() *worker {
	if d.prefill != nil {
		return d.prefill
	}
	return d.decode
}

// arrived queues a request or refuses it at once.
func (rt *Router) arrived(now time.Time, r Request) {
	if rt.queue.ids[r.ID] != nil || rt.running[r.ID] != nil {
		rt.refuse(r.ID, Refusal{Code: codes.Internal, Reason: api.ReasonDuplicate, Message: "a request with this id is already waiting or running"})
		return
	}
	if !rt.mayRetry(now, &r) {
		rt.refuse(r.ID, rt.retrySpent(&r))
		return
	}
	e := rt.entry(now, r)
	// A request that was admitted before is not turned away at the door again.
	if r.Attempt == 0 {
		rt.traffic[r.Model].recordArrival(now, &e.request)
		if limit := rt.TenantLimit(); rt.tenants.full(r.Tenant, limit) {
			rt.refuse(r.ID, Refusal{codes.ResourceExhausted, api.ReasonTenantLimit, "",
				fmt.Sprintf("tenant %q already has %d requests, its limit; retry when one has ended", r.Tenant, limit), time.Second})
			return
		}
		if n := len(rt.queue.ids); n >= rt.config.QueueLimit {
			full := Refusal{codes.ResourceExhausted, api.ReasonQueueFull, "",
				fmt.Sprintf("%d requests are already waiting, the limit; retry later", n), rt.queueHint(now)}
			last := rt.queue.last(e)
			if last == nil {
				rt.refuse(r.ID, full)
				return
			}
			full.Message = fmt.Sprintf("%d requests are waiting, the limit, and another of a higher class or of a tenant that has fewer came; retry later", n)
			rt.giveUp(last, full)
		}
	}
	rt.tenants.enter(r.Tenant)
	rt.queue.insert(e)
	rt.outgoing.changed = true
}

// entry is a request as it waits.
func (rt *Router) entry(now time.Time, r Request) *entry {
	class, unasked, each := cmp.Or(r.Class, rt.config.DefaultClass), false, r.TPOT
	if r.TTFT == 0 && r.TPOT == 0 {
		unasked = r.Class == ""
		o := rt.config.Classes[class]
		r.TTFT, r.TPOT = o.TTFT, o.TPOT
	}
	rt.number++
	e := &entry{
		defaultObjective: unasked, tpot: each, rank: slices.Index(ClassNames(), class), request: r, maxNew: r.MaxNew, enqueued: now, until: now.Add(rt.config.MaxQueueWait),
		pool: controlv1.Role_ROLE_DECODE, number: rt.number, prefixes: make(map[BlockKey]*prefix),
	}
	if !r.Deadline.IsZero() && r.Deadline.Before(e.until) {
		e.until = r.Deadline
	}
	if due := r.Arrived.Add(r.TTFT); r.TTFT > 0 && !unasked && r.Attempt == 0 && due.Before(e.until) {
		e.until = due
	}
	return e
}

// queueHint is when the queue may be shorter: after about half the wait of those that
// wait now, one second at least.
func (rt *Router) queueHint(now time.Time) time.Duration {
	var longest time.Duration
	for e := range rt.queue.all() {
		longest = max(longest, now.Sub(e.enqueued))
	}
	return max(longest/2, time.Second)
}

// TenantLimit is how many requests one tenant may have, waiting and running.
func (rt *Router) TenantLimit() int {
	if rt.operatorPolicy != nil && rt.operatorPolicy.TenantMaxRequests != nil {
		return int(rt.operatorPolicy.GetTenantMaxRequests())
	}
	return rt.config.TenantMaxRequests
}

func (rt *Router) threshold() int {
	if rt.operatorPolicy != nil && rt.operatorPolicy.DisaggregateMinTokens != nil {
		return int(rt.operatorPolicy.GetDisaggregateMinTokens())
	}
	return rt.config.DisaggregateMinTokens
}

func (rt *Router) refuse(id string, r Refusal) { rt.out = append(rt.out, Refuse{ID: id, Refusal: r}) }

// of is the worker of a role that a request runs on; nil: there is none.
func (d *dispatched) of(role controlv1.Role) *worker {
	if role == controlv1.Role_ROLE_PREFILL {
		return d.prefill
	}
	return d.decode
}

// queued takes in that a worker has a request: it is known from now on which load reports count
// it.
func (rt *Router) queued(e Queued) {
	if d := rt.running[e.ID]; d != nil {
		if w := d.of(e.Role); w != nil && w.own[e.ID] != nil {
			w.own[e.ID].task = e.Task
			rt.outgoing.changed = true
		}
	}
}

// promptDone takes in that a prompt is computed. It says whether others may follow: the worker
// begins the next one, or the transfer that began then shows that a broken path works again.
func (rt *Router) promptDone(now time.Time, id string) (more bool) {
	d, ok := rt.running[id]
	if !ok {
		return false
	}
	d.promptedAt = now
	rt.computed(now, id)
	rt.firstCame(now, d, false)
	d.decode.computed(id)
	if d.prefill == nil {
		d.decode.progressed(now)
		return rt.begins(now, d.decode)
	}
	if rt.disaggregatedPromptMs == 0 { // it is the first one
		rt.disaggregatedPromptMs = milliseconds(now.Sub(d.at))
	}
	rt.disaggregatedPromptMs = average(rt.disaggregatedPromptMs, now.Sub(d.at), averageWeight)
	d.prefill.computed(id)
	d.prefill.progressed(now)
	return rt.forgetPath(path{d.prefill.ref, d.decode.ref}) || rt.begins(now, d.prefill)
}

// tokensReceived takes in tokens of a decode worker. It says whether that ends a suspicion.
func (rt *Router) tokensReceived(now time.Time, e TokensReceived) bool {
	d, ok := rt.running[e.ID]
	if !ok {
		return false
	}
	before := d.decode.avoided(now)
	d.decode.gaps.merge(&e.Gaps)
	rt.tokensTook(now, d, &e.Gaps)
	d.decode.progressed(now)
	return before && !d.decode.avoided(now)
}

// ended takes in that a dispatched request has ended, or is to be tried again.
func (rt *Router) ended(now time.Time, e Ended) {
	d, ok := rt.running[e.ID]
	if !ok {
		return
	}
	delete(rt.running, e.ID)
	rt.expected.failed(e.ID)
	rt.tenants.leave(d.tenant)
	rt.queue.ended(d.level, d.tenant, e.Tokens)
	for _, w := range d.workers() {
		w.remove(e.ID)
		if w.probe.id == e.ID {
			w.probe.id = ""
		}
	}
	for _, failure := range e.Failures {
		rt.failed(now, e.ID, failure)
	}
	if e.Lost && d.promptedAt.IsZero() {
		rt.firstCame(now, d, true)
	}
	if d.outcome != nil {
		rt.endedCounted(now, d, &e)
	}
	if e.Served {
		rt.traffic[d.model].recordAnswer(e.Tokens, d.most)
		if !d.promptedAt.IsZero() {
			if e.Decoding > 0 {
				d.decode.decodedOne(now, e.Decoding)
			}
			if d.token > 0 && e.Tokens >= tokensTell {
				d.decode.tokens.observeAt(now, d.token, now.Sub(d.promptedAt)/time.Duration(e.Tokens-1))
			}
		}
		for _, w := range d.workers() {
			w.refusals = 0
			w.served(now)
		}
	}
}

// How long a worker that refused because it was full, or failed, is left alone.
const (
	busyLeast  = 50 * time.Millisecond
	busyMost   = 2 * time.Second
	failedMost = 200 * time.Millisecond
)

// failed takes in one failure of a request that has ended.
func (rt *Router) failed(now time.Time, id string, failure Failure) {
	if failure.Unreached != (Ref{}) {
		rt.pathFailed(now, path{failure.Worker, failure.Unreached}, id, failure.Why)
		return
	}
	w := rt.worker(failure.Worker)
	if w == nil {
		return
	}
	if failure.Replaced {
		rt.disconnect(now, w)
		return
	}
	if failure.Leaves {
		rt.leaves(now, w)
	}
	if failure.Silent {
		rt.hung(now, w)
	}
	if failure.Gone {
		return // its connection says whether it is back
	}
	// Doubling, so that a worker which is full for long is asked rarely, and
	// short for one that failed otherwise: that may have been the request.
	wait := doubling(busyLeast, w.refusals, failedMost)
	if failure.Busy {
		wait = min(max(failure.RetryAfter, doubling(busyLeast, w.refusals, busyMost)), busyMost)
	}
	w.refusals++
	if until := now.Add(wait); until.After(w.busyUntil) {
		w.busyUntil = until
	}
	rt.waking.leave(w)
}

// Queued is what waits, by model, pool, priority and class.
func (rt *Router) Queued(now time.Time) map[string][]*controlv1.QueueDepth {
	out := make(map[string][]*controlv1.QueueDepth)
	for e := range rt.queue.all() { // ordered by priority and class
		class := cmp.Or(e.request.Class, rt.config.DefaultClass)
		var depth *controlv1.QueueDepth
		for _, d := range out[e.request.Model] {
			if d.GetPool() == e.pool && d.GetPriority() == e.request.Priority && d.GetClass() == class {
				depth = d
			}
		}
		if depth == nil {
			depth = &controlv1.QueueDepth{Pool: e.pool, Priority: e.request.Priority, Class: class}
			out[e.request.Model] = append(out[e.request.Model], depth)
		}
		depth.Requests++
		depth.Tokens += uint64(e.request.Tokens)
		depth.OldestWaitMs = max(depth.GetOldestWaitMs(), uint64(max(now.Sub(e.enqueued), 0)/time.Millisecond))
	}
	return out
}

// Waiting is how many requests wait at the router.
func (rt *Router) Waiting() int { return len(rt.queue.ids) }

// Running is how many requests have been dispatched and have not ended.
func (rt *Router) Running() int { return len(rt.running) }
