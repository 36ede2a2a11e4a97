package routing

import (
	"cmp"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Router is the state machine that routes: it holds what is known of every worker and
// every waiting request. It is not safe for concurrent use.
type Router struct {
	config Config
	index  *kvcache.Index
	random Rand
	// policy is that of operatorPolicy, which operators have changed, or else Config.Policy.
	policy         policy
	operatorPolicy *controlv1.Policy
	served         map[string][]*servedVersion // by model
	// pinnedOnce are the models of which a version was once fixed.
	pinnedOnce map[string]bool
	// peers are the other routers, by model, and disagreeing those that serve other versions.
	peers        map[string][]peer
	disagreeing  map[string][]string
	otherRouters []*otherRouter // the other routers, by their ids
	peerLoads    peerLoads
	outgoing     outgoingReport
	peerReports  uint64 // of other routers, so far
	// pinsDue is when to see which versions are served; zero: nothing is to change.
	pinsDue          time.Time
	workers          map[string]*worker        // by id: a new incarnation replaces the old one
	order            []*worker                 // those of them that have answered, by id, so that equal histories give equal actions
	refusedHereAt    time.Time                 // when a request was last refused that would have been in time without others
	refusedForLoadAt time.Time                 // the same, by this router or another
	unanswered       map[controlv1.Role]int    // the others, by role
	live             bool                      // etcd answers
	ignored          int                       // workers of the last view beyond maxWorkers
	stores           []*worker                 // those of order that are block stores
	grouped          *groups                   // of order; nil: it has changed since
	duplicates       map[string]bool           // ids that several workers have
	left             []*controlv1.WorkerRecord // of workers that drained and left, oldest first
	traffic          map[string]*traffic       // by models that are served
	queue            queue
	running          map[string]*dispatched
	paths            map[path]*outage // bounded by maxPaths
	reopenings       []reopening      // of paths that failed once, in order
	// pathsDue is when to look for paths to forget; zero if there are none.
	pathsDue time.Time
	tenants  tenantCounts
	number   uint64 // of the last request
	// disaggregatedPromptMs is how long prompts took on prefill workers that send the KV, from the
	// dispatch on, on average.
	disaggregatedPromptMs float64
	speed                 speed // of KV between any two workers
	// guessTriedAt is when KV was sent last while none was measured.
	guessTriedAt  time.Time
	turns         uint64 // requests sent to workers, two where it is disaggregated
	searches      uint64
	lists         candidateLists
	listings      int // answers to ListBlocks that are on their way
	expected      expectations
	nearScratch   []*candidate   // scratch of pick
	hashes        []kvcache.Hash // scratch of blocks
	samples       uint64         // drawn so far
	sampled       []*worker      // the last one
	warmed        int            // means nothing: sample has to do something with what it reads
	holderScratch []holder       // scratch of holders
	quickest      [2]quickest    // of prefill and of decode workers
	// usualFirst and usualToken are what came of predictions, as of workers' slowness, of prefill
	// and of decode workers.
	usualFirst, usualToken [2]usual
	hedges                 hedges
	retries                retries
	// workersDue is the part of Next that few events change, and when a Tick does something for a
	// worker; zero: never.
	workersDue struct {
		at, ticks time.Time
		known     bool
	}
	waking       waking
	unregistered bool      // etcd may not list some of order
	now          time.Time // of the last event
	out          []Action
}

// Rand is the source of what is drawn: the choice among the near-best, and waits.
type Rand interface {
	// IntN returns a number from 0 to n-1.
	IntN(n int) int
}

// New returns a router without workers.
func New(config Config, random Rand) *Router {
	rt := &Router{
		config:      config,
		index:       kvcache.NewIndex(config.IndexBlocks),
		random:      random,
		policy:      policyOf(config.Policy),
		workers:     make(map[string]*worker),
		unanswered:  make(map[controlv1.Role]int),
		queue:       queue{ids: make(map[string]*entry), shares: make(map[levelKey]*shares)},
		running:     make(map[string]*dispatched),
		traffic:     make(map[string]*traffic, len(config.Models)),
		paths:       make(map[path]*outage),
		tenants:     tenantCounts{},
		pinnedOnce:  make(map[string]bool),
		disagreeing: make(map[string][]string),
		expected:    expectations{byRequest: make(map[string]*expectation), byBlock: make(map[kvcache.Hash][]*expectation)},
	}
	for _, m := range config.Models {
		rt.traffic[m.Name] = new(traffic)
	}
	rt.serveVersions(nil)
	return rt
}

// Handle takes in one event and returns what to do, in order. Times never run
// backwards.
func (rt *Router) Handle(now time.Time, event Event) []Action {
	rt.now, rt.out = now, nil
	rt.workersDue.known = rt.workersDue.known && ofRequestsAlone(event)
	rt.peerLoads.expire(now.Add(-toldLasts))
	pump := rt.take(now, event)
	if rt.pinVersionsDue(now) {
		rt.pinVersions(now)
		pump = true
	}
	if pump {
		rt.pump(now)
	}
	if rt.pinVersionsDue(now) { // the first dispatch fixes a version
		rt.pinVersions(now)
	}
	rt.tell(now)
	out := rt.out
	rt.out = nil
	return out
}

// take takes in an event. It says whether requests that wait may go on for it: load
// reports and KV events come all the time, and looking through the queue costs.
func (rt *Router) take(now time.Time, event Event) (pump bool) {
	switch e := event.(type) {
	case ViewChanged:
		rt.view(now, e)
	case Connected:
		rt.connected(now, e)
	case ConnectFailed:
		if w := rt.worker(e.Worker); w != nil && !w.connected {
			w.connectError = e.Why
			rt.pinsDue = now // there may be nobody to wait for
		}
		return false
	case Disconnected:
		if w := rt.worker(e.Worker); w != nil {
			rt.disconnect(now, w)
		}
	case Leaving:
		if w := rt.worker(e.Worker); w != nil {
			w.drained = e.Drained
			rt.leaves(now, w)
		}
	case LoadReported:
		return rt.reported(now, e.Report)
	case RouterReported:
		rt.routerReported(now, e.Report)
		return false
	case BlocksChanged:
		rt.blocks(now, e.Event)
		return false
	case BlocksListed:
		return rt.listed(now, e)
	case Arrived:
		rt.arrived(now, e.Request)
	case Hedge:
		rt.hedge(now, e)
		return false
	case Queued:
		rt.queued(e)
		return false
	case Taken:
		return rt.taken(now, e)
	case Unread:
		rt.tenants.enter(e.Tenant)
		return false
	case Read:
		rt.tenants.leave(e.Tenant)
		return false
	case PromptDone:
		return rt.promptDone(now, e.ID)
	case Sent:
		rt.sent(now, e)
	case Fetched:
		rt.fetched(now, e)
		return false
	case TokensReceived:
		return rt.tokensReceived(now, e)
	case Contradicted:
		rt.contradicted(now, e)
		return false
	case Ended:
		rt.ended(now, e)
	case Cancelled:
		if w := rt.queue.remove(e.ID); w != nil {
			rt.tenants.leave(w.request.Tenant)
		}
	case PolicyChanged:
		rt.operatorPolicy = e.Policy
		rt.policy = policyOf(cmp.Or(e.Policy.GetRouting(), rt.config.Policy))
		rt.serveVersions(e.Policy)
	case Tick:
		rt.tick(now)
	}
	return true
}

// tick does what is due by now.
func (rt *Router) tick(now time.Time) {
	due := rt.workersDue
	ticks := !due.known || rt.unregistered || !due.ticks.IsZero() && !now.Before(due.ticks)
	if ticks {
		rt.workersDue.known = false
		rt.expireWorkers(now)
	}
	if !rt.pathsDue.IsZero() && !now.Before(rt.pathsDue) {
		rt.expirePaths(now)
	}
	if ticks {
		rt.listAll(now)
	}
}

// Next is when a Tick is due, if nothing else happens.
func (rt *Router) Next() (time.Time, bool) {
	next := rt.queue.due
	soonest(&next, rt.pathsDue)
	soonest(&next, rt.pinsDue)
	soonest(&next, rt.tellDue())
	if len(rt.queue.ids) > 0 {
		soonest(&next, rt.nextReopening()) // some may wait for it
		soonest(&next, rt.nextOfWaiting())
	}
	soonest(&next, rt.nextOfWorkers())
	return next, !next.IsZero()
}

// soonest lets due be no later than t. Zero is never, of both.
func soonest(due *time.Time, t time.Time) {
	if !t.IsZero() && (due.IsZero() || t.Before(*due)) {
		*due = t
	}
}

// nextOfWorkers is when the first worker is dropped that etcd does not list, or asked for its
// prefix cache; zero if there is none.
func (rt *Router) nextOfWorkers() time.Time {
	if rt.workersDue.known {
		return rt.workersDue.at
	}
	var next, ticks time.Time
	asks := false
	for _, w := range rt.order {
		if !w.missingSince.IsZero() {
			soonest(&next, w.missingSince.Add(rt.config.WorkerKeep-w.missing))
		}
		if rt.wantsList(w) {
			soonest(&next, w.listNext)
			asks = true
		}
		if w.connected {
			soonest(&next, w.checkAt)
		}
		soonest(&ticks, w.checkAt)
	}
	if asks { // any Tick may
		ticks = rt.now
	}
	rt.workersDue.at, rt.workersDue.ticks, rt.workersDue.known = next, ticks, true
	return next
}

// ofRequestsAlone reports whether an event changes nothing of who is listed and connected, but
// for a BlocksChanged or LoadReported that shows a gap.
func ofRequestsAlone(event Event) bool {
	switch e := event.(type) {
	case LoadReported, RouterReported, BlocksChanged, Arrived, Hedge, Queued, Taken, Unread, Read, PromptDone, Sent, TokensReceived, Cancelled, Tick:
		return true
	case Ended:
		return len(e.Failures) == 0
	}
	return false
}

// pinVersionsDue reports whether it is time to see which versions are served.
func (rt *Router) pinVersionsDue(now time.Time) bool {
	return !rt.pinsDue.IsZero() && !now.Before(rt.pinsDue)
}

func (rt *Router) worker(ref Ref) *worker {
	w := rt.workers[ref.ID]
	switch {
	case w == nil || w.ref == ref:
		return w
	case w.successor != nil && w.successor.ref == ref:
		return w.successor
	}
	return nil
}
