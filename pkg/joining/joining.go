package joining

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// phase is where a request is in its life.
type phase int8

const (
	idle     phase = iota // no workers are asked for and no attempt is on
	asking                // for workers
	running               // an attempt is on
	finished              // Finish is out; streams may still be open
)

// Join is the state of one request. It is not safe for concurrent use.
type Join struct {
	// What comes with every token lies together: last in attempt, then up to delivers, and first in
	// Params. Many requests run at a time, and then each line of memory that is read counts.
	attempt  attempt
	phase    phase
	accepted bool
	stopped  bool // the last of tokens ends the text
	dueKnown bool
	number   int
	rival    *rival    // the other attempt of a hedged request; nil: there is one attempt at most
	due      time.Time // what Next returned last, while that stands; zero, too, if it wanted nothing
	last     time.Time // token
	tokens   []int32
	scored   int      // tokens of the prompt that DeliverPrompt said
	decoded  *Buffers // of HandleDecode; nil: not needed yet
	out      []Action
	delivers []Deliver // those of out
	p        Params

	approximate bool // a sequence ran on KV that had lost bits on its way
	suspicions  int  // attempts that ended because a worker may hang
	open        openStreams
	few         [2]openStream // where open begins

	attempts   int  // number of the last attempt
	hedged     bool // there was a hedged attempt
	hedgeAsked int  // the number of that, until it is answered; else 0

	failed   int // attempts in which a worker failed
	retries  int // attempts after another had failed
	refused  int // attempts that a worker ended because it was full or leaves
	failures []routing.Failure
	claims   []claim         // of workers that failed attempts
	version  routing.Version // of all attempts; zero: that of the first, which has not begun

	lostConnection  routing.Ref // worker whose connection the last attempt lost; zero: it ended otherwise
	lostConnections int         // attempts that were not counted, since only a connection was lost

	firstAt, secondAt time.Time

	released bool      // Release of the present attempt is out
	served   bool      // the request ended well
	lingerAt time.Time // finished: when to close what is still open
}

// maxLostConnections is how often a request may lose its connections to workers that live
// without spending an attempt.
const maxLostConnections = 16

// New returns the life of a request that has not started.
func New(p Params) *Join {
	j := new(Join)
	NewIn(j, p)
	return j
}

// NewIn is New in place, for a Join that is part of something larger. A Join is not copied.
func NewIn(j *Join, p Params) {
	*j = Join{p: p, version: p.Version, attempt: attempt{most: p.MaxTokens}}
	j.open = j.few[:0]
}

// Buffers is where HandleDecode puts what it returns.
type Buffers struct {
	out      []Action
	delivers []Deliver
}

// Share has HandleDecode use buffers that others use, too: what it returned is valid until
// one of them calls it. It is to be called before the first event.
func (j *Join) Share(b *Buffers) { j.decoded = b }

// Done reports that the request has finished and nothing of it is open.
func (j *Join) Done() bool { return j.phase == finished && len(j.open) == 0 }

// Holder is the worker that has the KV of the whole blocks of the prompt in its prefix cache, once
// one has; zero with true: none will share it. Of a request that two workers serve it is decode's.
func (j *Join) Holder() (worker routing.Ref, known bool) {
	t := &j.attempt
	switch {
	case j.phase == finished:
		return worker, true
	case j.phase != running || !t.first || t.disaggregated && !t.admitted:
		return worker, false
	case j.approximate:
		return worker, true
	}
	return t.Decode, true
}

// Tokens is how many tokens were delivered.
func (j *Join) Tokens() int { return len(j.tokens) }

// Fetch has the processor read what HandleDecode will need for a token. It waits for many lines of
// memory at a time where none of them has to be there for the next: so with many requests. What it
// returns means nothing.
func (j *Join) Fetch() (fetched int) {
	t := &j.attempt
	fetched = t.gaps.Count() + t.decodeNext + t.decodeAt.Nanosecond() + j.number + len(j.tokens) + len(j.p.StopTokens)
	if last := len(j.tokens) - 1; last >= 0 {
		fetched += int(j.tokens[last])
	}
	return fetched
}

// Next is when a Tick is due, if nothing else happens. Tokens put that off, but Next says so only
// after the Tick: whoever sets a timer need not set it again for each of them.
func (j *Join) Next() (time.Time, bool) {
	if !j.dueKnown {
		j.due, j.dueKnown = j.next(), true
	}
	return j.due, !j.due.IsZero()
}

// Stands reports that what Next returned last holds: nothing has happened since but tokens.
func (j *Join) Stands() bool { return j.dueKnown }

func (j *Join) next() (at time.Time) {
	if len(j.open) == 0 {
		return at
	}
	switch j.phase {
	case finished:
		at = j.lingerAt
	case running:
		at = j.orRival(j.attemptDue)
		if due := j.hedgeDue(); at.IsZero() || !due.IsZero() && due.Before(at) {
			at = due
		}
	}
	return at
}

// attemptDue is when time alone changes something of the present attempt.
func (j *Join) attemptDue() time.Time {
	at := j.attempt.waitUntil
	if due := j.silence().due; at.IsZero() || !due.IsZero() && due.Before(at) {
		at = due
	}
	return at
}

// Handle takes in one event and returns what to do, in order. Times never run
// backwards.
func (j *Join) Handle(now time.Time, event Event) []Action {
	j.out, j.delivers, j.dueKnown = nil, nil, false
	switch e := event.(type) {
	case Start:
		if j.phase == idle {
			j.ask(now, false)
		}
	case Dispatched:
		j.dispatched(now, e)
	case Refused:
		switch {
		case j.answersHedge(e.Attempt):
			j.notHedged(now)
		case j.phase == asking && e.Attempt == j.number:
			j.phase = idle // the ask was answered
			j.finish(now, Finish{Err: j.onlyClaim(e.Err)})
		}
	case DecodeMessage:
		j.decodeMessage(now, e)
	case PrefillMessage:
		if j.turnTo(e.Attempt); j.phase == running && e.Attempt == j.number && !j.attempt.closing[Prefill] {
			j.attempt.prefillAt = now
			j.prefill(now, e.Event)
		}
	case Closed:
		j.closed(now, e)
	case Progressed:
		j.progressed(now, e)
	case Abort:
		if j.phase != finished {
			j.finish(now, Finish{Err: e.Err})
		}
	case Tick:
		j.tick(now)
	}
	out := j.out
	j.out, j.delivers = nil, nil
	return out
}

// HandleDecode is Handle for what comes with every token, and allocates nothing for one in the
// long run: the actions are valid until its next call.
func (j *Join) HandleDecode(now time.Time, e DecodeMessage) []Action {
	if j.decoded == nil {
		j.decoded = new(Buffers)
	}
	j.out, j.delivers = j.decoded.out[:0], j.decoded.delivers[:0]
	steady := j.dueKnown && j.generates()
	j.decodeMessage(now, e)
	j.dueKnown = steady && j.generates() && j.attempt.ended == nil && j.attempt.waitUntil.IsZero()
	j.decoded.out, j.decoded.delivers = j.out, j.delivers
	j.out, j.delivers = nil, nil
	return j.decoded.out
}

// generates reports whether all that is due now is decode's next token.
func (j *Join) generates() bool {
	t := &j.attempt
	return j.phase == running && t.admitted && t.first && !t.paused && !t.catchesUp
}

func (j *Join) decodeMessage(now time.Time, e DecodeMessage) {
	if j.turnTo(e.Attempt); j.phase != running || e.Attempt != j.number || j.attempt.closing[Decode] {
		return
	}
	before := j.attempt.decodeAt
	j.attempt.decodeAt = now
	j.decode(now, before, e.Event)
}

func (j *Join) do(a Action) { j.out = append(j.out, a) }

func (j *Join) ask(now time.Time, retry bool) {
	j.phase = asking
	if j.p.MeanState {
		j.tokens, j.stopped = j.tokens[:0], false
	}
	j.attempt = attempt{asked: now, most: j.p.MaxTokens}
	j.do(Ask{Attempt: j.number, Retry: retry, Generated: slices.Clone(j.tokens), Failures: slices.Clone(j.failures), Version: j.version})
}

func (j *Join) tick(now time.Time) {
	switch {
	case j.phase == finished && !j.lingerAt.IsZero() && !now.Before(j.lingerAt):
		j.lingerAt = time.Time{}
		j.closeAll()
	case j.phase == running:
		if due := j.hedgeDue(); !due.IsZero() && !now.Before(due) {
			j.hedge(now)
		}
		j.tickAttempt(now)
		if j.phase == running && j.rival != nil {
			j.swap()
			j.tickAttempt(now)
		}
	}
}

// tickAttempt is tick for the present attempt.
func (j *Join) tickAttempt(now time.Time) {
	if !j.attempt.waitUntil.IsZero() && !now.Before(j.attempt.waitUntil) {
		j.attempt.waitUntil = time.Time{}
		switch {
		case j.attempt.first && j.attempt.ended != nil:
			j.complete(now, Decode)
		case j.attempt.firstEnd != nil:
			j.fail(now, j.attempt.firstEnd.side, j.attempt.firstEnd.err)
		default:
			j.fail(now, Prefill, status.Error(codes.Internal, "decode has ended, but no first token came from prefill"))
		}
		return
	}
	switch w := j.silence(); {
	case w.due.IsZero() || now.Before(w.due):
	case w.suspect, w.queued:
		j.do(CheckProgress{Stream: Stream{j.number, w.side}, Worker: j.attempt.worker(w.side)})
	default:
		j.silent(now, w.side)
	}
}

// closeAll asks for the streams of the present attempt to be closed. Those of earlier ones
// are closing already.
func (j *Join) closeAll() {
	for _, side := range [...]Side{Decode, Prefill} {
		s := Stream{j.number, side}
		if i := j.open.find(s); i >= 0 && !j.open[i].closing {
			j.open[i].closing = true
			j.attempt.closing[side] = true
			j.do(Close{s})
		}
	}
}
