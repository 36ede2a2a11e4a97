package joining

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// A worker that is silent for longer than Params.Silence has failed. After the shorter
// limits of Dispatched it is suspected: unless it shows that it computes, the request
// goes on elsewhere. That is a guess, so it spends no attempt, and after maxSuspicions of
// them the request keeps to Params.Silence.
const maxSuspicions = 2

// wait is until when a worker may say nothing.
type wait struct {
	side Side
	// due is when its silence is too long; zero: it need not say anything.
	due time.Time
	// suspect: due is by Dispatched's limits, not by Params.Silence.
	suspect bool
	// queued: the sequence waits for its turn there, which a busy worker is silent about.
	queued bool
}

// silence is which worker has to say something next, and by when. Where both have to,
// it is the one whose time ends first.
func (j *Join) silence() wait {
	t := &j.attempt
	if t.ended != nil || t.firstEnd != nil {
		return wait{} // the rest is bounded by waitUntil
	}
	decode, prefill := j.wait(Decode), j.wait(Prefill)
	if !prefill.due.IsZero() && (decode.due.IsZero() || prefill.due.Before(decode.due)) {
		return prefill
	}
	return decode
}

func (j *Join) wait(side Side) wait {
	t := &j.attempt
	turn, last, derived := j.decodeTurn(), t.decodeAt, &t.DecodeSilence
	if side == Prefill {
		turn, last, derived = j.prefillTurn(), t.prefillAt, &t.PrefillSilence
	}
	if turn == nothing {
		return wait{}
	}
	if side == Decode && t.sent && !t.admitted && t.prefillAt.After(last) {
		last = t.prefillAt // until then it was prefill's turn
	}
	failed := last.Add(turn.of(&j.p.Silence))
	if j.suspicions < maxSuspicions && turn.of(derived) > 0 {
		if t.progressAt[side].After(last) {
			last = t.progressAt[side]
		}
		if due := last.Add(turn.of(derived)); due.Before(failed) {
			return wait{side: side, due: due, suspect: true}
		}
	}
	return wait{side: side, due: failed, queued: turn == inQueue}
}

// progressed takes in when the worker that is due last showed that it computes. One that
// did not is suspected, or has failed. One that did is busy with others: the request has
// waited in its queue for as long as it may.
func (j *Join) progressed(now time.Time, e Progressed) {
	if j.turnTo(e.Stream.Attempt); j.phase != running || e.Stream.Attempt != j.number {
		return
	}
	j.attempt.progressAt[e.Stream.Side] = e.At
	w := j.silence()
	switch {
	case w.side != e.Stream.Side || w.due.IsZero() || now.Before(w.due):
	case w.suspect:
		j.suspicions++
		j.attempt.suspected = true
		j.silent(now, w.side)
	case w.queued && now.Sub(e.At) < j.p.Silence.Tokens:
		j.attempt.outwaited = true
		j.fail(now, w.side, rpc.Error(codes.ResourceExhausted, api.ReasonQueueTimeout,
			fmt.Sprintf("%s worker %s is busy: the request waited %s in its queue", w.side, j.attempt.worker(w.side).ID, j.p.Silence.Queue), 0))
	case w.queued:
		j.silent(now, w.side)
	}
}

func (j *Join) silent(now time.Time, side Side) {
	j.fail(now, side, rpc.Error(codes.Unavailable, api.ReasonWorkerSilent, side.String()+" worker has been silent for too long", 0))
}

// turn is what a worker is at, and so which field of a Silence counts.
type turn int8

const (
	nothing turn = iota // it has nothing to say now
	inQueue
	atPrompt
	atTokens
)

func (t turn) of(s *routing.Silence) time.Duration {
	switch t {
	case inQueue:
		return s.Queue
	case atPrompt:
		return s.Prompt
	}
	return s.Tokens
}

// decodeTurn is what decode is at.
func (j *Join) decodeTurn() turn {
	t := &j.attempt
	switch {
	case t.paused:
		return inQueue
	case t.catchesUp:
		return atPrompt
	case t.admitted && (t.first || t.disaggregated):
		return atTokens
	case t.admitted:
		return atPrompt
	case !t.disaggregated || !t.reserved, t.sent:
		return inQueue
	}
	return nothing // prefill's turn
}

// prefillTurn is what prefill is at.
func (j *Join) prefillTurn() turn {
	t := &j.attempt
	switch {
	case t.first && t.admitted, t.sent, !t.reserved, !t.disaggregated:
		return nothing // decode's turn
	case !t.started:
		return inQueue
	}
	return atPrompt
}
