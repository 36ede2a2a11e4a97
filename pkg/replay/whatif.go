package replay

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Otherwise is what routing with another configuration would have made of a log, compared with
// what it did.
type Otherwise struct {
	// Requests were asked for. Each is one of Same, OtherWorkers, OtherMode, Refused, Sent and
	// Undecided.
	Requests int `json:"requests"`
	// Same were sent to the same workers, or refused, as they were.
	Same int `json:"same"`
	// OtherWorkers were sent to other workers, and OtherMode to one instead of two or the
	// other way round.
	OtherWorkers int `json:"other_workers"`
	OtherMode    int `json:"other_mode"`
	// Refused were sent and would have been refused, Reasons says why; Sent were refused and
	// would have been sent.
	Refused int            `json:"refused"`
	Reasons map[string]int `json:"reasons"`
	Sent    int            `json:"sent"`
	// Undecided are without a decision in the log or now.
	Undecided int `json:"undecided"`
	// Longer and Shorter waited for longer, or less long, by a millisecond at least.
	Longer  int `json:"waited_longer"`
	Shorter int `json:"waited_shorter"`
	// Was and Would are the waits of those that were sent both times.
	Was   Waits `json:"was"`
	Would Waits `json:"would"`
	// Different are the first of those of OtherWorkers, OtherMode, Refused and Sent, in the order
	// in which they arrived, and NotListed is how many more there are.
	Different []Different `json:"different"`
	NotListed int         `json:"different_not_listed"`
	// Incomplete is Result's.
	Incomplete string `json:"incomplete,omitempty"`
}

// Different is a request that would have fared otherwise.
type Different struct {
	ID    string `json:"id"`
	Was   Fate   `json:"was"`
	Would Fate   `json:"would"`
}

// Fate is what was decided on a request: Mode and workers, or why it is Refused.
type Fate struct {
	Mode    string `json:"mode,omitempty"`
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// maxDifferent is how many requests Otherwise lists.
const maxDifferent = 1000

// Waits are how long requests waited at the router, in milliseconds.
type Waits struct {
	MeanMS float64 `json:"mean_ms"`
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	MaxMS  float64 `json:"max_ms"`
}

// happening is an event at its time.
type happening struct {
	at     time.Time
	number uint64 // in the log: orders those of one time
	event  routing.Event
	drawn  []int // by routing.Rand then
}

// decision is what was decided on a request.
type decision struct {
	decode, prefill routing.Ref
	refused         bool
	reason          string
}

func (d decision) fate() Fate {
	switch {
	case d.refused:
		return Fate{Refused: d.reason}
	case d.prefill == routing.Ref{}:
		return Fate{Mode: "aggregated", Decode: d.decode.ID}
	}
	return Fate{Mode: "disaggregated", Prefill: d.prefill.ID, Decode: d.decode.ID}
}

// attempt is what a log says of one attempt of a request. Its times count from the log's beginning.
type attempt struct {
	arrived, decided time.Duration
	ended            time.Duration // the last that happened to it since it was decided
	number           uint64        // of the event that decided
	decision         *decision     // nil: there was none
}

func (a *attempt) dispatched() bool { return a.decision != nil && !a.decision.refused }

// request is all that is kept of a request while a log is read: it has to be little.
type request struct {
	id       string
	was      []attempt
	would    attempt // the first
	arrivals int     // of attempts, as it would be

	// Of the log as it is read again, attempts being counted from 1:
	read     int // the last one
	function uint64
	decided  int // the last one that would be decided; endless: none is to come
	follows  int // does what it did, shifted by shift
	shift    time.Duration
	waiting  []pending // for their attempt to be dispatched
}

type pending struct {
	attempt int
	happening
}

const endless = math.MaxInt

// history is what a log says of requests.
type history struct {
	config    routing.Config
	began     time.Time
	last      uint64 // event
	requests  map[string]*request
	order     []*request
	decisions map[decision]*decision // each but once
	why       string
}

// WhatIf asks what routing would have decided with the configuration that change makes of the
// recorded one. What workers do is as it was: their reports, their prefix caches and how long
// they took. A request that goes to other workers takes as long there as it took; one that was
// refused takes as long as the others do on average.
//
// It reads the log twice, and keeps a few hundred bytes of each request.
func WhatIf(in io.ReadSeeker, change func(routing.Config) (routing.Config, error)) (Otherwise, error) {
	h, err := readHistory(in)
	if err != nil {
		return Otherwise{}, err
	}
	config, err := change(h.config)
	if err != nil {
		return Otherwise{}, err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return Otherwise{}, fmt.Errorf("the log has to be read a second time: %w", err)
	}
	if err := h.runAgain(in, config); err != nil {
		return Otherwise{}, err
	}
	return h.compare(), nil
}

// routingLog reads what a log says of routing.
type routingLog struct {
	*eventlog.Reader
	core   uint64
	config routing.Config
}

func openRouting(in io.Reader) (*routingLog, error) {
	log, err := open(in)
	if err != nil {
		return nil, err
	}
	log.Only(eventlog.KindRouting)
	return &routingLog{Reader: log}, nil
}

// next is the next event, and what was called and done. io.EOF: there is none.
func (l *routingLog) next() (record *eventlog.Record, calls []eventlog.Call, actions []any, err error) {
	for {
		record, err := l.Next()
		switch {
		case err != nil:
			return nil, nil, nil, err
		case record.Kind != "":
			config, is := record.Config.(routerlog.Routing)
			if !is || l.core != 0 {
				return nil, nil, nil, errors.New("the log has more than one router")
			}
			l.core, l.config = record.Core, config.Config
		case !record.End:
			calls, actions, err = record.Outcome()
			return record, calls, actions, err
		}
	}
}

func readHistory(in io.Reader) (*history, error) {
	log, err := openRouting(in)
	if err != nil {
		return nil, err
	}
	h := &history{began: log.Began, requests: make(map[string]*request), decisions: make(map[decision]*decision)}
	for {
		record, _, actions, err := log.next()
		var cut *eventlog.CutError
		switch {
		case errors.As(err, &cut):
			h.why = cut.Error()
		case errors.Is(err, io.EOF):
			h.why = log.Why
		case err != nil:
			return nil, err
		default:
			if err := h.add(record, actions); err != nil {
				return nil, err
			}
			continue
		}
		break
	}
	if log.core == 0 {
		return nil, errors.New("the log is not of a router, and only routers have a policy to change")
	}
	h.config = log.config
	return h, nil
}

// requestOf is the request that an event is of; "": it is of none.
func requestOf(event any) string {
	switch e := event.(type) {
	case routing.Arrived:
		return e.Request.ID
	case routing.Taken:
		return e.ID
	case routing.PromptDone:
		return e.ID
	case routing.TokensReceived:
		return e.ID
	case routing.Ended:
		return e.ID
	case routing.Cancelled:
		return e.ID
	}
	return ""
}

// add takes in an event.
func (h *history) add(record *eventlog.Record, actions []any) error {
	if _, is := record.Event.(routing.Event); !is {
		return fmt.Errorf("event %d is a %T, which routing does not take", record.Number, record.Event)
	}
	h.last = record.Number
	now, id := record.Now.Sub(h.began), requestOf(record.Event)
	r := h.requests[id]
	if r != nil {
		if last := &r.was[len(r.was)-1]; last.dispatched() {
			last.ended = now
		}
	}
	if _, arrives := record.Event.(routing.Arrived); arrives {
		if r == nil {
			r = &request{id: id}
			h.requests[id], h.order = r, append(h.order, r)
		}
		r.was = append(r.was, attempt{arrived: now})
	}
	for _, action := range actions {
		if r, decision := h.decide(action); r != nil {
			last := &r.was[len(r.was)-1]
			last.decided, last.ended, last.number, last.decision = now, now, record.Number, decision
		}
	}
	return nil
}

// decide is what an action decides, on a request; nil: on none.
func (h *history) decide(action any) (*request, *decision) {
	var id string
	var made decision
	switch a := action.(type) {
	case routing.Dispatch:
		id, made = a.ID, decision{decode: a.Decode, prefill: a.Prefill}
	case routing.Refuse:
		id, made = a.ID, decision{refused: true, reason: a.Refusal.Reason}
	}
	r := h.requests[id]
	if r == nil {
		return nil, nil
	}
	kept := h.decisions[made]
	if kept == nil {
		kept = &made
		h.decisions[made] = kept
	}
	return r, kept
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
	core    *routing.Router
	random  *drawn
	average time.Duration
	now     time.Time
	due     agenda

	log    *routingLog
	readTo time.Time // of the log; the rest is later
	ended  bool
	// ahead is how much earlier than in the log things may happen, so that it has to be read
	// as far ahead.
	ahead time.Duration
	// hashes are what Request.Hash was seen to answer, by its number, for those that wait.
	hashes map[uint64]map[routing.BlockKey][]kvcache.Hash
}

func (h *history) runAgain(in io.Reader, config routing.Config) error {
	log, err := openRouting(in)
	if err != nil {
		return err
	}
	random := &drawn{others: rand.New(rand.NewPCG(1, 2))}
	a := &again{
		history: h, core: routing.New(config, random), random: random, average: h.average(), log: log,
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
	var cut *eventlog.CutError
	switch {
	case errors.Is(err, io.EOF), errors.As(err, &cut), err == nil && record.Number > a.last: // it has grown
		a.ended = true
		return nil
	case err != nil:
		return err
	}
	e := happening{at: record.Now, number: record.Number}
	e.event, _ = record.Event.(routing.Event) // as add has seen
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
	for _, action := range a.core.Handle(a.now, e.event) {
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

// ended is the last that happened to a request.
func (r *request) ended() time.Duration {
	last := r.was[len(r.was)-1]
	return max(last.arrived, last.ended)
}

// average is how long requests took from their first dispatch on.
func (h *history) average() time.Duration {
	var sum time.Duration
	n := 0
	for _, r := range h.order {
		if first := &r.was[0]; first.dispatched() && first.ended > first.decided {
			sum += r.ended() - first.decided
			n++
		}
	}
	if n == 0 {
		return time.Second
	}
	return sum / time.Duration(n)
}

// compare says how what would have been differs from what was.
func (h *history) compare() Otherwise {
	out := Otherwise{Reasons: make(map[string]int), Different: []Different{}, Incomplete: h.why}
	var was, would []time.Duration
	for _, r := range h.order {
		a, b := &r.was[0], &r.would
		out.Requests++
		if a.decision == nil || b.decision == nil {
			out.Undecided++
			continue
		}
		differs := true
		switch then, now := *a.decision, *b.decision; {
		case then == now, then.refused && now.refused:
			out.Same++
			differs = false
		case then.refused:
			out.Sent++
		case now.refused:
			out.Refused++
			out.Reasons[now.reason]++
		case (then.prefill == routing.Ref{}) != (now.prefill == routing.Ref{}):
			out.OtherMode++
		default:
			out.OtherWorkers++
		}
		switch {
		case !differs:
		case len(out.Different) < maxDifferent:
			out.Different = append(out.Different, Different{r.id, a.decision.fate(), b.decision.fate()})
		default:
			out.NotListed++
		}
		if !a.dispatched() || !b.dispatched() {
			continue
		}
		waited, waits := a.decided-a.arrived, b.decided-b.arrived
		was, would = append(was, waited), append(would, waits)
		switch {
		case waits-waited >= time.Millisecond:
			out.Longer++
		case waited-waits >= time.Millisecond:
			out.Shorter++
		}
	}
	out.Was, out.Would = waitsOf(was), waitsOf(would)
	return out
}

func waitsOf(waits []time.Duration) Waits {
	if len(waits) == 0 {
		return Waits{}
	}
	slices.Sort(waits)
	var sum time.Duration
	for _, w := range waits {
		sum += w
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	at := func(share float64) float64 { return ms(waits[min(int(share*float64(len(waits))), len(waits)-1)]) }
	return Waits{ms(sum) / float64(len(waits)), at(0.5), at(0.99), ms(waits[len(waits)-1])}
}
