package replay

import (
	"container/heap"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// happening is an event at its time.
type happening struct {
	at     time.Time
	number uint64 // in the log: orders those of one time
	event  routing.Event
	drawn  []int // by routing.Rand then
}

// agenda is a heap of what is going to happen.
type agenda []happening

func (a agenda) Len() int { return len(a) }

func (a agenda) Less(i, j int) bool {
	if !a[i].at.Equal(a[j].at) {
		return a[i].at.Before(a[j].at)
	}
	return a[i].number < a[j].number
}

func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push is heap.Interface's.
func (a *agenda) Push(x any) {
	if h, is := x.(happening); is {
		*a = append(*a, h)
	}
}

// Pop is heap.Interface's.
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// again is a history as it would have been.
type again struct {
	*history
	core *routing.Router
	// otherPolicy: the question names a policy.
	otherPolicy bool
	random      *drawn
	average     time.Duration
	now         time.Time
	due         agenda

	log    *routingLog
	readTo time.Time // of the log; the rest is later
	ended  bool
	// ahead is how much earlier than in the log things may happen, so that it has to be read
	// as far ahead.
	ahead time.Duration
	// hashes are what Request.Hash was seen to answer, by its number, for those that wait.
	hashes map[uint64]map[routing.BlockKey][]kvcache.Hash
}

func (h *history) runAgain(ctx context.Context, in io.Reader, config routing.Config) error {
	log, err := openRouting(ctx, in)
	if err != nil {
		return err
	}
	random := &drawn{others: rand.New(rand.NewPCG(1, 2))}
	a := &again{
		history: h, core: routing.New(config, random), otherPolicy: config.Policy != h.config.Policy, random: random, average: h.average(), log: log,
		hashes: make(map[uint64]map[routing.BlockKey][]kvcache.Hash),
	}
	for {
		for !a.ended && (len(a.due) == 0 || !a.readTo.After(a.due[0].at.Add(a.ahead))) {
			if err := a.read(); err != nil {
				return err
			}
		}
		if len(a.due) == 0 {
			return nil
		}
		tick, is := a.core.Next()
		if tick = later(tick, a.now).Add(tickWait); is && tick.Before(a.due[0].at) {
			a.now = tick
			a.take(happening{event: routing.Tick{}})
			continue
		}
		next, _ := heap.Pop(&a.due).(happening)
		a.now = next.at
		a.take(next)
	}
}

func (a *again) plan(at time.Time, e happening) {
	e.at = at
	heap.Push(&a.due, e)
}

// read reads an event and plans it.
func (a *again) read() error {
	record, calls, actions, err := a.log.next()
	_, ends := ended(a.log.Reader, err)
	switch {
	case ends, err == nil && record.Number > a.last: // it has grown
		a.ended = true
		return nil
	case err != nil:
		return err
	}
	e := happening{at: record.Now, number: record.Number}
	e.event, _ = record.Event.(routing.Event) // as add has seen
	if _, is := e.event.(routing.Hedge); is { // what is late may not have been
		return nil
	}
	r := a.requests[requestOf(e.event)]
	if arrived, is := e.event.(routing.Arrived); is && arrived.Request.Hash != nil {
		hashes := make(map[routing.BlockKey][]kvcache.Hash)
		arrived.Request.Hash = func(key routing.BlockKey) []kvcache.Hash { return hashes[key] }
		e.event = arrived
		r.function = record.Function
		a.hashes[r.function] = hashes
	}
	for _, call := range calls {
		if key, is := call.In[0].Interface().(routing.BlockKey); is {
			if hashes := a.hashes[call.Function]; hashes != nil {
				hashes[key], _ = call.Out[0].Interface().([]kvcache.Hash)
			}
			continue
		}
		e.drawn = append(e.drawn, int(call.Out[0].Int()))
	}
	a.readTo = e.at
	switch {
	case r == nil || r.read == 0 || !r.was[r.read-1].dispatched() || r.was[r.read-1].number >= e.number:
		a.plan(e.at, e)
	case r.read == r.follows:
		a.plan(e.at.Add(r.shift), e)
	case r.read > r.decided:
		r.waiting = append(r.waiting, pending{r.read, e})
	}
	switch e.event.(type) {
	case routing.Arrived:
		r.read++
	case routing.Cancelled:
		if r != nil {
			delete(a.hashes, r.function)
		}
	}
	for _, action := range actions {
		if r, _ := a.decide(action); r != nil {
			delete(a.hashes, r.function)
		}
	}
	return nil
}

// take has the core take in an event.
func (a *again) take(e happening) {
	a.random.then = e.drawn
	now := a.now.Sub(a.began)
	if arrived, is := e.event.(routing.Arrived); is {
		r := a.requests[arrived.Request.ID]
		if r.arrivals++; r.arrivals == 1 {
			r.would.arrived = now
		}
	}
	for _, action := range a.core.Handle(a.now, a.asked(e.event)) {
		r, decision := a.decide(action)
		if r == nil || r.arrivals == 0 {
			continue
		}
		if r.arrivals == 1 {
			r.would.decided, r.would.decision = now, decision
		}
		a.follow(r, decision)
	}
}

// asked is an event without what contradicts the question: operators may have changed the policy
// while the log was written.
func (a *again) asked(event routing.Event) routing.Event {
	changed, is := event.(routing.PolicyChanged)
	if !is || changed.Policy.GetRouting() == "" || !a.otherPolicy {
		return event
	}
	policy := proto.CloneOf(changed.Policy)
	policy.Routing = nil
	return routing.PolicyChanged{Policy: policy}
}

// follow plans what happens to a request on which this is decided now: what did then, if it is
// on the same workers, or only its end.
func (a *again) follow(r *request, now *decision) {
	waiting := r.waiting
	r.waiting, r.decided, r.follows = nil, r.arrivals, 0
	end := happening{number: math.MaxUint64, event: routing.Ended{ID: r.id, Served: true}}
	then := &attempt{}
	if r.arrivals <= len(r.was) {
		then = &r.was[r.arrivals-1]
	}
	switch {
	case !then.dispatched():
		if !now.refused {
			a.plan(a.now.Add(a.average), end)
		}
	case then.decision == now:
		r.follows, r.shift = r.arrivals, a.now.Sub(a.began)-then.decided
		a.ahead = max(a.ahead, -r.shift)
	default:
		r.decided = endless
		if took := r.ended() - then.decided; took > 0 && !now.refused {
			a.plan(a.now.Add(took), end)
		}
	}
	for _, e := range waiting {
		switch {
		case e.attempt == r.follows:
			a.plan(e.at.Add(r.shift), e.happening)
		case e.attempt > r.decided:
			r.waiting = append(r.waiting, e)
		}
	}
}

// tickWait is how long a tick of the log may come after it was due: if none comes, the core
// gets another.
const tickWait = 2 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// drawn is the routing.Rand of a history: it draws with each event what was drawn with it then,
// as far as that goes.
type drawn struct {
	then   []int
	others *rand.Rand
}

// IntN is routing.Rand's.
func (r *drawn) IntN(n int) int {
	if len(r.then) > 0 {
		x := r.then[0]
		if r.then = r.then[1:]; x < n {
			return x
		}
	}
	return r.others.IntN(n)
}
