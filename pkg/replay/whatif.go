package replay

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
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
	// Incomplete is Result's.
	Incomplete string `json:"incomplete,omitempty"`
}

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

// attempt is what a log says of one attempt of a request.
type attempt struct {
	arrived  time.Time
	decided  time.Time // zero: it was not
	dispatch *routing.Dispatch
	refusal  *routing.Refusal
	// after is what happened to it since it was dispatched, the next attempt included.
	after []happening
	ended time.Time // the last of those
}

// history is what a log says of routing.
type history struct {
	config   routing.Config
	outside  []happening // all but what comes after a dispatch
	attempts map[string][]*attempt
	ids      []string // in order
	why      string
}

// WhatIf asks what routing would have decided with the configuration that change makes of the
// recorded one. What workers do is as it was: their reports, their prefix caches and how long
// they took. A request that goes to other workers takes as long there as it took; one that was
// refused takes as long as the others do on average.
func WhatIf(in io.Reader, change func(routing.Config) (routing.Config, error)) (Otherwise, error) {
	h, err := readHistory(in)
	if err != nil {
		return Otherwise{}, err
	}
	config, err := change(h.config)
	if err != nil {
		return Otherwise{}, err
	}
	now := h.run(config)
	return h.compare(now), nil
}

func readHistory(in io.Reader) (*history, error) {
	log, err := open(in)
	if err != nil {
		return nil, err
	}
	log.Lenient()
	h := &history{attempts: make(map[string][]*attempt)}
	var core uint64
	for {
		record, err := log.Next()
		var cut *eventlog.CutError
		if errors.Is(err, io.EOF) || errors.As(err, &cut) {
			h.why = log.Why
			if cut != nil {
				h.why = cut.Error()
			}
			break
		}
		switch {
		case err != nil:
			return nil, err
		case record.Kind == eventlog.KindRouting:
			config, is := record.Config.(routerlog.Routing)
			if !is || core != 0 {
				return nil, errors.New("the log has more than one router")
			}
			core, h.config = record.Core, config.Config
			continue
		case record.Kind != "" || record.End || record.Core != core:
			continue
		}
		event, is := record.Event.(routing.Event)
		if !is {
			return nil, fmt.Errorf("event %d is a %T, which routing does not take", record.Number, record.Event)
		}
		answers, actions, err := record.Outcome()
		if err != nil {
			return nil, err
		}
		happened := happening{at: record.Now, number: record.Number, event: event}
		for _, answer := range answers {
			if answer[0].Kind() == reflect.Int { // else it is of Request.Hash
				happened.drawn = append(happened.drawn, int(answer[0].Int()))
			}
		}
		h.add(happened, actions)
	}
	if core == 0 {
		return nil, errors.New("the log is not of a router, and only routers have a policy to change")
	}
	return h, nil
}

// requestOf is the request that an event is of; "": it is of none.
func requestOf(event routing.Event) string {
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

func (h *history) add(here happening, actions []any) {
	now, event := here.at, here.event
	id := requestOf(event)
	attempts := h.attempts[id]
	var last *attempt
	if len(attempts) > 0 {
		last = attempts[len(attempts)-1]
	}
	_, arrives := event.(routing.Arrived)
	switch {
	case id == "":
		h.outside = append(h.outside, here)
	case last != nil && last.dispatch != nil:
		last.after, last.ended = append(last.after, here), now
	default:
		h.outside = append(h.outside, here)
	}
	if arrives {
		if last == nil {
			h.ids = append(h.ids, id)
		}
		h.attempts[id] = append(attempts, &attempt{arrived: now})
	}
	for _, action := range actions {
		h.decide(now, action)
	}
}

// decide takes in an action that decides on a request.
func (h *history) decide(now time.Time, action any) {
	var id string
	switch a := action.(type) {
	case routing.Dispatch:
		id = a.ID
	case routing.Refuse:
		id = a.ID
	}
	attempts := h.attempts[id]
	if len(attempts) == 0 {
		return
	}
	last := attempts[len(attempts)-1]
	last.decided = now
	switch a := action.(type) {
	case routing.Dispatch:
		last.dispatch = &a
	case routing.Refuse:
		last.refusal = &a.Refusal
	}
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

// run is the history as it would have been.
func (h *history) run(config routing.Config) *history {
	random := &drawn{others: rand.New(rand.NewPCG(1, 2))}
	core := routing.New(config, random)
	out := &history{attempts: make(map[string][]*attempt)}
	var due agenda
	plan := func(at time.Time, e happening) {
		e.at = at
		heap.Push(&due, e)
	}
	for _, e := range h.outside {
		plan(e.at, e)
	}
	average := h.average()
	var now time.Time
	take := func(e happening) {
		random.then = e.drawn
		actions := core.Handle(now, e.event)
		written := make([]any, len(actions))
		for i, action := range actions {
			written[i] = action
		}
		out.add(happening{at: now, event: e.event}, written)
		for _, action := range actions {
			if d, is := action.(routing.Dispatch); is {
				h.follow(now, d, len(out.attempts[d.ID])-1, average, plan)
			}
		}
	}
	for len(due) > 0 {
		tick, is := core.Next()
		if tick = later(tick, now).Add(tickWait); is && tick.Before(due[0].at) {
			now = tick
			take(happening{event: routing.Tick{}})
			continue
		}
		next, _ := heap.Pop(&due).(happening)
		now = next.at
		take(next)
	}
	return out
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

// average is how long requests took from their first dispatch on.
func (h *history) average() time.Duration {
	var sum time.Duration
	n := 0
	for _, attempts := range h.attempts {
		if first := attempts[0]; first.dispatch != nil && !first.ended.IsZero() {
			sum += attempts[len(attempts)-1].lastTime().Sub(first.decided)
			n++
		}
	}
	if n == 0 {
		return time.Second
	}
	return sum / time.Duration(n)
}

func (a *attempt) lastTime() time.Time {
	if a.ended.After(a.decided) {
		return a.ended
	}
	return a.decided
}

// follow plans what happens to a request that is dispatched now: what did then, if it is on the
// same workers, or only its end.
func (h *history) follow(now time.Time, d routing.Dispatch, index int, average time.Duration, plan func(time.Time, happening)) {
	attempts := h.attempts[d.ID]
	if index >= len(attempts) || attempts[index].dispatch == nil {
		plan(now.Add(average), happening{number: math.MaxUint64, event: routing.Ended{ID: d.ID, Served: true}})
		return
	}
	then := attempts[index]
	if then.dispatch.Decode == d.Decode && then.dispatch.Prefill == d.Prefill {
		for _, e := range then.after {
			plan(now.Add(e.at.Sub(then.decided)), e)
		}
		return
	}
	if end := attempts[len(attempts)-1].lastTime(); end.After(then.decided) {
		plan(now.Add(end.Sub(then.decided)), happening{number: math.MaxUint64, event: routing.Ended{ID: d.ID, Served: true}})
	}
}

// compare says how what would have been differs from what was.
func (h *history) compare(now *history) Otherwise {
	out := Otherwise{Reasons: make(map[string]int), Incomplete: h.why}
	var was, would []time.Duration
	for _, id := range h.ids {
		a, b := h.attempts[id][0], &attempt{}
		if attempts := now.attempts[id]; len(attempts) > 0 {
			b = attempts[0]
		}
		out.Requests++
		switch {
		case a.decided.IsZero() || b.decided.IsZero():
			out.Undecided++
		case a.refusal != nil && b.refusal != nil:
			out.Same++
		case a.refusal != nil:
			out.Sent++
		case b.refusal != nil:
			out.Refused++
			out.Reasons[b.refusal.Reason]++
		case (a.dispatch.Prefill == routing.Ref{}) != (b.dispatch.Prefill == routing.Ref{}):
			out.OtherMode++
		case a.dispatch.Prefill != b.dispatch.Prefill || a.dispatch.Decode != b.dispatch.Decode:
			out.OtherWorkers++
		default:
			out.Same++
		}
		if a.dispatch == nil || b.dispatch == nil {
			continue
		}
		waited, waits := a.decided.Sub(a.arrived), b.decided.Sub(b.arrived)
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
