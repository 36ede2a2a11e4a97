package joining

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// phase is where a request is in its life.
type phase int

const (
	fresh    phase = iota // nothing is asked for and no try is on
	asking                // no workers yet
	running               // a try is on
	finished              // Finish is out; streams may still be open
)

// Join is the state of one request. It is not safe for concurrent use.
type Join struct {
	p        Params
	phase    phase
	attempt  int
	failed   int // tries in which a worker failed
	refused  int // tries that a worker refused for want of room
	failures []fleet.Failure
	lineage  string
	accepted bool
	lossy    bool // a sequence ran on KV that had lost bits on its way

	tokens                  []int32
	firstAt, secondAt, last time.Time

	try      try
	open     map[Stream]bool // value: Close was asked for
	released bool            // Release of the present try is out
	lingerAt time.Time       // finished: when to close what is still open
	out      []Action
}

// try is one choice of workers and how far it came.
type try struct {
	Dispatched
	base                                       int // tokens before it
	asked, at, reservedAt, firstAt, admittedAt time.Time
	reserved, started, first, sent, admitted   bool
	paused                                     bool // decode waits for others; nothing came of it since
	catchesUp                                  bool // decode may compute again what it has sent
	workerQueue, decodeQueue                   time.Duration
	cached, fetched                            uint32
	decodeNext                                 int     // offset that decode has to send next
	pending                                    []drawn // tokens of decode that overtook the first
	ended                                      *workerv1.Ended
	early                                      *ending   // of one stream, if the other may explain it
	waitUntil                                  time.Time // for the other stream's word
	decodeAt, prefillAt                        time.Time // of the last message, or the opening
	prefillComputeNs, transferNs, fetchNs      int64
	transferTailNs                             int64
	transferBytes                              uint64
	transport                                  string // that it went over
	firstLast                                  bool
	firstReason                                inferencev1.FinishReason
}

// ending is the end of one stream.
type ending struct {
	side Side
	err  error
}

func (t *try) disaggregated() bool { return t.Mode == inferencev1.Mode_MODE_DISAGGREGATED }

// New returns the life of a request that has not started.
func New(p Params) *Join {
	return &Join{p: p, open: make(map[Stream]bool)}
}

// Done reports that the request has finished and nothing of it is open.
func (j *Join) Done() bool { return j.phase == finished && len(j.open) == 0 }

// Tokens is how many tokens were delivered.
func (j *Join) Tokens() int { return len(j.tokens) }

// Next is when a Tick is due, if nothing else happens.
func (j *Join) Next() (time.Time, bool) {
	var at time.Time
	switch j.phase {
	case finished:
		at = j.lingerAt
	case running:
		at = j.try.waitUntil
		if _, due := j.silence(); at.IsZero() || !due.IsZero() && due.Before(at) {
			at = due
		}
	}
	return at, !at.IsZero() && len(j.open) > 0
}

// Handle takes in one event and returns what to do, in order. Times never run
// backwards.
func (j *Join) Handle(now time.Time, event Event) []Action {
	j.out = nil
	switch e := event.(type) {
	case Start:
		if j.phase == fresh {
			j.ask(now)
		}
	case Dispatched:
		j.dispatched(now, e)
	case Refused:
		if j.phase == asking && e.Attempt == j.attempt {
			j.phase = fresh // the ask was answered
			j.finish(now, Finish{Err: e.Err})
		}
	case DecodeMessage:
		if j.phase == running && e.Attempt == j.attempt && !j.open[Stream{e.Attempt, Decode}] {
			j.try.decodeAt = now
			j.decode(now, e.Event)
		}
	case PrefillMessage:
		if j.phase == running && e.Attempt == j.attempt && !j.open[Stream{e.Attempt, Prefill}] {
			j.try.prefillAt = now
			j.prefill(now, e.Event)
		}
	case Closed:
		j.closed(now, e)
	case Abort:
		if j.phase != finished {
			j.finish(now, Finish{Err: e.Err})
		}
	case Tick:
		j.tick(now)
	}
	out := j.out
	j.out = nil
	return out
}

func (j *Join) do(a Action) { j.out = append(j.out, a) }

func (j *Join) ask(now time.Time) {
	j.phase = asking
	j.try = try{asked: now}
	a := Ask{Attempt: j.attempt, Generated: slices.Clone(j.tokens), Failures: slices.Clone(j.failures)}
	if len(j.tokens) > 0 {
		a.Lineage = j.lineage
	}
	j.do(a)
}

func (j *Join) dispatched(now time.Time, e Dispatched) {
	if j.phase != asking || e.Attempt != j.attempt {
		// It crossed a Withdraw: what was set aside for it goes back.
		j.do(Release{Attempt: e.Attempt})
		return
	}
	j.phase, j.released = running, false
	j.lineage = e.Lineage
	j.try = try{Dispatched: e, base: len(j.tokens), asked: j.try.asked, at: now, decodeAt: now, decodeNext: len(j.tokens)}
	if j.try.disaggregated() {
		j.try.decodeNext++
	}
	s := Stream{j.attempt, Decode}
	j.open[s] = false
	j.do(OpenDecode{Stream: s, Worker: e.Decode, Generated: slices.Clone(j.tokens), PrefillHere: !j.try.disaggregated()})
}

// settle ends the request if decode has ended it and prefill has said all that
// is needed: the first token at any rate, and its account of the transfer if
// that comes soon.
func (j *Join) settle(now time.Time) {
	t := &j.try
	if t.ended == nil {
		return
	}
	if _, prefillOpen := j.open[Stream{j.attempt, Prefill}]; t.disaggregated() && prefillOpen && (!t.first || !t.sent) {
		if t.waitUntil.IsZero() {
			t.waitUntil = now.Add(j.p.Linger)
		}
		return
	}
	j.complete(now, t.ended.GetReason())
}

// closed takes in the end of a stream.
func (j *Join) closed(now time.Time, e Closed) {
	if _, ok := j.open[e.Stream]; !ok {
		return
	}
	asked := j.open[e.Stream]
	delete(j.open, e.Stream)
	if j.phase == finished {
		j.release()
		return
	}
	if j.phase != running || e.Stream.Attempt != j.attempt || asked {
		return
	}
	t := &j.try
	side := e.Stream.Side
	switch {
	case t.ended != nil && side == Decode:
		return // all that matters was said
	case t.first && side == Prefill && t.early == nil && (t.sent || t.admitted || t.ended != nil):
		j.settle(now)
		return
	}
	err := orEnded(e.Err, side)
	other := Stream{j.attempt, 1 - side}
	_, otherOpen := j.open[other]
	switch {
	case t.early != nil && echo(err):
		j.fail(now, t.early.side, t.early.err) // neither says more
	case t.early == nil && otherOpen && t.mayExplain(other.Side, err):
		t.early = &ending{side, err}
		t.waitUntil = now.Add(j.p.Linger)
		if rpc.Reason(err) == worker.ReasonTransferUnreachable {
			// Mostly there is no more to it, and it is the client's time. Were the other
			// worker dead, its connection would have broken by now.
			t.waitUntil = now.Add(j.p.Linger / unreachableHaste)
		}
	default:
		j.fail(now, side, err)
	}
}

// unreachableHaste is by how much shorter than Linger the wait for the other side's
// word is if one side only says that it cannot reach it.
const unreachableHaste = 10

// echo reports that an end of one stream only says that the other side gave up
// or was lost.
func echo(err error) bool {
	switch rpc.Reason(err) {
	case worker.ReasonFinishedAtPrefill, worker.ReasonTransferFailed, worker.ReasonTransferUnreachable, reasonCutShort:
		return true
	}
	return status.Code(err) == codes.Canceled
}

// mayExplain reports that the side whose stream is still open may yet say why the
// other one ended with err. Prefill gives a transfer up when the first token is
// also the last, and either gives it up when it is refused or dies: it is that
// one which failed, and how decides what comes next. A decode that has ended well
// has nothing to explain.
func (t *try) mayExplain(side Side, err error) bool {
	if !t.disaggregated() || !echo(err) || side == Decode && t.ended != nil {
		return false
	}
	return rpc.Reason(err) == worker.ReasonTransferFailed || side == Decode || !t.first
}

// reasonCutShort marks a stream that ended well before all was said.
const reasonCutShort = "ENDED_TOO_EARLY"

func orEnded(err error, side Side) error {
	if err != nil {
		return err
	}
	return rpc.Error(codes.Internal, reasonCutShort, side.String()+" worker ended its stream too early", 0)
}

func (j *Join) tick(now time.Time) {
	switch {
	case j.phase == finished && !j.lingerAt.IsZero() && !now.Before(j.lingerAt):
		j.lingerAt = time.Time{}
		j.closeAll(func(Stream) bool { return true })
	case j.phase == running && !j.try.waitUntil.IsZero() && !now.Before(j.try.waitUntil):
		j.try.waitUntil = time.Time{}
		switch {
		case j.try.first && j.try.ended != nil:
			j.complete(now, j.try.ended.GetReason())
		case j.try.early != nil:
			j.fail(now, j.try.early.side, j.try.early.err)
		default:
			j.fail(now, Prefill, status.Error(codes.Internal, "decode has ended, and the first token did not come from prefill"))
		}
	case j.phase == running:
		if side, due := j.silence(); !due.IsZero() && !now.Before(due) {
			j.fail(now, side, rpc.Error(codes.Unavailable, ReasonWorkerSilent, side.String()+" worker has not said anything for too long", 0))
		}
	}
}

// closeAll asks for the streams that match to be closed, decode before prefill
// and old before new.
func (j *Join) closeAll(match func(Stream) bool) {
	var streams []Stream
	for s, closing := range j.open {
		if !closing && match(s) {
			streams = append(streams, s)
		}
	}
	slices.SortFunc(streams, func(a, b Stream) int {
		if a.Attempt != b.Attempt {
			return a.Attempt - b.Attempt
		}
		return int(a.Side) - int(b.Side)
	})
	for _, s := range streams {
		j.open[s] = true
		j.do(Close{s})
	}
}

func (j *Join) accept() {
	if !j.accepted {
		j.accepted = true
		j.do(Accept{})
	}
}

// deliver gives one token to the client. Afterwards the request may have
// finished: the token may complete a stop text.
func (j *Join) deliver(now time.Time, d drawn) {
	j.accept()
	t := &j.try
	if !t.first {
		t.first, t.firstAt = true, now
		j.do(PromptDone{})
	}
	switch len(j.tokens) {
	case 0:
		j.firstAt = now
	case 1:
		j.secondAt = now
	}
	j.last = now
	text, stop := j.p.Text.Push(d.token)
	j.do(Deliver{Offset: len(j.tokens), Token: d.token, Text: text, Logprobs: d.logprobs})
	j.tokens = append(j.tokens, d.token)
	if stop != "" {
		j.succeed(now, inferencev1.FinishReason_FINISH_REASON_STOP, "", stop)
		j.closeAll(func(Stream) bool { return true })
	}
}
