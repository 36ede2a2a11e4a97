package fleet

import (
	"container/list"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Fleet is the state. It is not safe for concurrent use.
type Fleet struct {
	config  Config
	index   *kvcache.Index
	random  Rand
	policy  *controlv1.Policy
	workers map[string]*worker // by id: a new incarnation replaces the old one
	order   []*worker          // the same, by id, so that equal histories give equal actions
	stores  []*worker          // those of order that are block stores
	doubled map[string]bool    // ids that several workers have
	queue   queue
	running map[string]*dispatched
	paths   map[path]*outage // bounded by maxPaths
	// accidents are those of paths that are left alone after a first failure, the next
	// to be tried first.
	accidents list.List
	// pathsDue is when to look for paths to forget; zero if there are none.
	pathsDue time.Time
	tenants  map[string]int // requests, waiting and running
	number   uint64         // of the last request
	looks    uint64         // searches for workers
	now      time.Time      // of the last event
	out      []Action
}

// dispatched is a request that runs.
type dispatched struct {
	tenant          string
	decode, prefill *worker // prefill is nil in aggregated mode
}

// New returns a fleet without workers.
func New(config Config, random Rand) *Fleet {
	return &Fleet{
		config:  config,
		index:   kvcache.NewIndex(config.IndexBlocks),
		random:  random,
		workers: make(map[string]*worker),
		queue:   queue{ids: make(map[string]*entry)},
		running: make(map[string]*dispatched),
		paths:   make(map[path]*outage),
		tenants: make(map[string]int),
	}
}

// Handle takes in one event and returns what to do, in order. Times never run
// backwards.
func (f *Fleet) Handle(now time.Time, event Event) []Action {
	f.now, f.out = now, nil
	f.rested(now)
	// The queue is looked through only when that can come to something: load
	// reports and KV events come all the time.
	pump := true
	switch e := event.(type) {
	case ViewChanged:
		f.view(now, e)
	case Connected:
		if w := f.worker(e.Worker); w != nil {
			w.connected, w.connectedAt = true, now
			if e.Blocks != nil {
				f.snapshot(now, w, e.Blocks)
			}
			f.list(now, w)
		}
	case Disconnected:
		if w := f.worker(e.Worker); w != nil {
			f.disconnect(now, w)
		}
	case LoadReported:
		origin := e.Report.GetOrigin()
		w := f.worker(Ref{origin.GetId(), origin.GetEpoch()})
		pump = w != nil && w.report(now, e.Report, f.config)
	case BlocksChanged:
		pump = false
		f.blocks(now, e.Event)
	case BlocksListed:
		pump = f.listed(now, e)
	case Arrived:
		f.arrived(now, e.Request)
	case PromptDone:
		pump = false // what it frees is time, and nobody waits for that: but for a path
		if d, ok := f.running[e.ID]; ok {
			d.decode.computed(e.ID)
			if d.prefill != nil {
				d.prefill.computed(e.ID)
				pump = f.forgetPath(path{d.prefill.ref, d.decode.ref}) // a transfer began on it
			}
		}
	case Fetched:
		pump = false
		f.fetched(now, e)
	case Ended:
		f.ended(now, e)
	case Cancelled:
		if w := f.queue.remove(e.ID); w != nil {
			f.leave(w.request.Tenant)
		}
	case PolicyChanged:
		f.policy = e.Policy
	case Tick:
		f.expireWorkers(now)
		if !f.pathsDue.IsZero() && !now.Before(f.pathsDue) {
			f.expirePaths(now)
		}
		for _, w := range f.order {
			f.list(now, w)
		}
	}
	if pump {
		f.pump(now)
	}
	out := f.out
	f.out = nil
	return out
}

// Next is when a Tick is due, if nothing else happens.
func (f *Fleet) Next() (time.Time, bool) {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	earlier(f.queue.due)
	earlier(f.pathsDue)
	if len(f.queue.entries) > 0 {
		if o := f.accident(); o != nil {
			earlier(o.until) // some may wait for it
		}
	}
	for _, w := range f.order {
		if !w.registered {
			earlier(w.lostAt.Add(f.config.WorkerKeep))
		}
		if len(f.queue.entries) > 0 {
			if w.busyUntil.After(f.now) {
				earlier(w.busyUntil)
			}
			if w.fresh(f.now, f.config.LoadStale) {
				// From then on the router goes by its own account, which may say that
				// there is room.
				earlier(w.loadAt.Add(f.config.LoadStale + 1))
			}
		}
		if w.unlisted && w.connected && !w.listing {
			earlier(w.listNext)
		}
	}
	return next, !next.IsZero()
}

func (f *Fleet) worker(ref Ref) *worker {
	if w := f.workers[ref.ID]; w != nil && w.ref == ref {
		return w
	}
	return nil
}

// arrived queues a request or refuses it at once.
func (f *Fleet) arrived(now time.Time, r Request) {
	if f.queue.ids[r.ID] != nil || f.running[r.ID] != nil {
		f.refuse(r.ID, Refusal{Code: codes.Internal, Reason: ReasonDuplicate, Message: "a request of this name waits or runs already"})
		return
	}
	// A request that was admitted before is not turned away at the door again.
	if r.Attempt == 0 {
		if limit := f.TenantLimit(); f.tenants[r.Tenant] >= limit {
			f.refuse(r.ID, Refusal{codes.ResourceExhausted, ReasonTenantLimit, "",
				fmt.Sprintf("tenant %q has %d requests, as many as it may; retry when one has ended", r.Tenant, limit), time.Second})
			return
		}
		if len(f.queue.entries) >= f.config.QueueLimit {
			f.refuse(r.ID, Refusal{codes.ResourceExhausted, ReasonQueueFull, "",
				fmt.Sprintf("%d requests wait already, as many as may; retry later", len(f.queue.entries)), f.queueHint(now)})
			return
		}
	}
	f.number++
	e := &entry{
		request: r, enqueued: now, until: now.Add(f.config.MaxQueueWait), pool: controlv1.Role_ROLE_DECODE, number: f.number,
		prefixes: make(map[prefixKey]*prefix),
	}
	if !r.Deadline.IsZero() && r.Deadline.Before(e.until) {
		e.until = r.Deadline
	}
	if due := r.Arrived.Add(r.TTFT); r.TTFT > 0 && r.Attempt == 0 && due.Before(e.until) {
		e.until = due
	}
	f.tenants[r.Tenant]++
	f.queue.insert(e)
}

// queueHint is when there may be room in the queue: after about half the wait
// of those that wait now, one second at least.
func (f *Fleet) queueHint(now time.Time) time.Duration {
	var longest time.Duration
	for _, e := range f.queue.entries {
		longest = max(longest, now.Sub(e.enqueued))
	}
	return max(longest/2, time.Second)
}

// TenantLimit is how many requests one tenant may have, waiting and running.
func (f *Fleet) TenantLimit() int {
	if f.policy != nil && f.policy.TenantMaxRequests != nil {
		return int(f.policy.GetTenantMaxRequests())
	}
	return f.config.TenantMaxRequests
}

func (f *Fleet) threshold() int {
	if f.policy != nil && f.policy.DisaggregateMinTokens != nil {
		return int(f.policy.GetDisaggregateMinTokens())
	}
	return f.config.DisaggregateMinTokens
}

func (f *Fleet) leave(tenant string) {
	if f.tenants[tenant]--; f.tenants[tenant] <= 0 {
		delete(f.tenants, tenant)
	}
}

func (f *Fleet) refuse(id string, r Refusal) { f.out = append(f.out, Refuse{id, r}) }

// How long a worker that refused for want of room, or failed, is left alone.
const (
	busyLeast  = 50 * time.Millisecond
	busyMost   = 2 * time.Second
	failedMost = 200 * time.Millisecond
)

func (f *Fleet) ended(now time.Time, e Ended) {
	d, ok := f.running[e.ID]
	if !ok {
		return
	}
	delete(f.running, e.ID)
	d.decode.remove(e.ID)
	if d.prefill != nil {
		d.prefill.remove(e.ID)
	}
	f.leave(d.tenant)
	for _, failure := range e.Failures {
		if failure.Unreached != (Ref{}) {
			f.lose(now, path{failure.Worker, failure.Unreached}, e.ID, failure.Why)
			continue
		}
		w := f.worker(failure.Worker)
		if w != nil && failure.Replaced {
			f.disconnect(now, w)
			continue
		}
		if w != nil && failure.Leaves {
			w.record = proto.CloneOf(w.record) // the view's is not ours to change
			w.record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
			f.expireWorkers(now)
		}
		if w != nil && failure.Silent {
			w.hungAt = now
		}
		if w == nil || failure.Gone {
			continue // its connection says whether it is back
		}
		// Doubling, so that a worker which is full for long is asked rarely, and
		// short for one that failed otherwise: that may have been the request.
		wait := busyLeast << min(w.refusals, 6)
		if failure.Busy {
			wait = min(max(failure.RetryAfter, wait), busyMost)
		} else {
			wait = min(wait, failedMost)
		}
		w.refusals++
		w.busyUntil = now.Add(wait)
	}
	if len(e.Failures) == 0 {
		d.decode.refusals = 0
		if d.prefill != nil {
			d.prefill.refusals = 0
		}
	}
}

// Queued is what waits, by model, pool and priority.
func (f *Fleet) Queued(now time.Time) map[string][]*controlv1.QueueDepth {
	out := make(map[string][]*controlv1.QueueDepth)
	for _, e := range f.queue.entries { // ordered by priority
		var depth *controlv1.QueueDepth
		for _, d := range out[e.request.Model] {
			if d.GetPool() == e.pool && d.GetPriority() == e.request.Priority {
				depth = d
			}
		}
		if depth == nil {
			depth = &controlv1.QueueDepth{Pool: e.pool, Priority: e.request.Priority}
			out[e.request.Model] = append(out[e.request.Model], depth)
		}
		depth.Requests++
		depth.Tokens += uint64(e.request.Tokens)
		depth.OldestWaitMs = max(depth.GetOldestWaitMs(), uint64(max(now.Sub(e.enqueued), 0)/time.Millisecond))
	}
	return out
}

// Waiting is how many requests wait and Running how many run.
func (f *Fleet) Waiting() int { return len(f.queue.entries) }

// Running is how many requests have been dispatched and have not ended.
func (f *Fleet) Running() int { return len(f.running) }
