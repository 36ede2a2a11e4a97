package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// decision is what was decided on a request.
type decision struct {
	decode, prefill routing.Ref
	refused         bool
	reason          string
}

func (d decision) exported() Decision {
	switch {
	case d.refused:
		return Decision{Refused: d.reason}
	case d.prefill == routing.Ref{}:
		return Decision{Mode: "aggregated", Decode: d.decode.ID}
	}
	return Decision{Mode: "disaggregated", Prefill: d.prefill.ID, Decode: d.decode.ID}
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
	hedges    int                    // that were asked for
	why       string
}

// routingLog reads what a log says of routing.
type routingLog struct {
	*eventlog.Reader
	core   uint64
	config routing.Config
}

func openRouting(ctx context.Context, in io.Reader) (*routingLog, error) {
	log, err := open(ctx, in)
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

func readHistory(ctx context.Context, in io.Reader) (*history, error) {
	log, err := openRouting(ctx, in)
	if err != nil {
		return nil, err
	}
	h := &history{began: log.Began, requests: make(map[string]*request), decisions: make(map[decision]*decision)}
	for {
		record, _, actions, err := log.next()
		if why, is := ended(log.Reader, err); is {
			h.why = why
			break
		}
		if err == nil {
			err = h.add(record, actions)
		}
		if err != nil {
			return nil, err
		}
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
	case routing.Queued:
		return e.ID
	case routing.Taken:
		return e.ID
	case routing.PromptDone:
		return e.ID
	case routing.Sent:
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
	if _, is := record.Event.(routing.Hedge); is {
		h.hedges++
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
