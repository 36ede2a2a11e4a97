package joining

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// attempt is one choice of workers and how far it came.
type attempt struct {
	Dispatched
	reason      string    // of the choice, for people
	base        int       // tokens before it
	connections [2]uint64 // by side, of streams that were closed

	asked, at, reservedAt, startedAt, firstAt, admittedAt time.Time

	pending   []drawn // tokens of decode that overtook the first
	transport string  // that the KV went over

	workerQueue, decodeQueue              time.Duration
	cached, fetched                       uint32
	prefillComputeNs, transferNs, fetchNs int64
	transferTailNs                        int64
	transferBytes                         uint64
	drafts, acceptedDrafts                uint32 // tokens that decode guessed at, so far

	firstEnd   *ending      // of one stream, if the other may explain it
	prefillAt  time.Time    // as decodeAt
	progressAt [2]time.Time // of the workers, by Side, as the routing core knows

	gaps       routing.Gaps // since toldAt
	toldAt     time.Time    // when the routing core was last told of gaps
	decodeAt   time.Time    // of the last message, or the opening
	waitUntil  time.Time    // for what the other stream says
	ended      *workerv1.Ended
	decodeNext int // offset that decode has to send next
	scored     int // tokens of the prompt of which it was said how likely they are
	most       int // tokens that there can be

	// decode: reserved, then admitted, then tokens, paused and catching up now and then.
	reserved, admitted bool
	paused             bool // it waits for others; nothing came of it since
	catchesUp          bool // it may compute again what it has sent

	// prefill: started, then the first token, then all sent.
	disaggregated        bool
	started, first, sent bool
	firstLast            bool // the worker says that the first token is also the last

	queued [2]bool // by side: the worker has said that it has the sequence

	closing [2]bool // by side: Close was asked for

	hedge bool // it is the second of two
	// hedgeAgain is after how long to ask for a hedged attempt again; 0: none was refused.
	hedgeAgain time.Duration
	suspected  bool // it ends because a worker may hang
	outwaited  bool // it ends because a busy worker did not begin in time
}

// ending is the end of one stream.
type ending struct {
	side Side
	err  error
}

func (t *attempt) worker(side Side) routing.Ref {
	if side == Prefill {
		return t.Prefill
	}
	return t.Decode
}

func (j *Join) dispatched(now time.Time, e Dispatched) {
	hedge := j.answersHedge(e.Attempt)
	if !hedge && (j.phase != asking || e.Attempt != j.number) {
		// It crossed a Withdraw: give back what was reserved.
		j.do(Release{Attempt: e.Attempt, ID: cmp.Or(e.ID, j.p.ID)})
		return
	}
	asked := j.attempt.asked
	if hedge {
		j.rival = &rival{j.number, j.attempt}
		j.number, j.hedged, asked = e.Attempt, true, now
	} else if j.lostConnection != (routing.Ref{}) && (e.Decode == j.lostConnection || e.Prefill == j.lostConnection) && j.lostConnections < maxLostConnections {
		// The worker lives, only its connection was lost: that attempt is not counted.
		j.failed--
		j.lostConnections++
	}
	if !hedge {
		j.lostConnection = routing.Ref{}
	}
	j.phase, j.released = running, false
	j.version = e.Version
	reason := e.Decision.GetReason()
	e.Decision = nil // it is large where workers are many
	j.attempt = attempt{
		Dispatched: e, disaggregated: e.Prefill != (routing.Ref{}), reason: reason, base: len(j.tokens), hedge: hedge,
		asked: asked, at: now, decodeAt: now, toldAt: now, decodeNext: len(j.tokens), most: j.p.MaxTokens,
	}
	if e.ContextTokens > 0 {
		j.attempt.most = min(j.attempt.most, e.ContextTokens-j.p.PromptTokens)
	}
	if j.attempt.disaggregated {
		j.attempt.decodeNext++
	}
	s := Stream{j.number, Decode}
	j.open.add(s)
	j.do(OpenDecode{Stream: s, Worker: e.Decode, Generated: slices.Clone(j.tokens), PrefillHere: !j.attempt.disaggregated, Sender: e.Prefill.ID})
}

func (j *Join) accept() {
	if !j.accepted {
		j.accepted = true
		j.do(Accept{})
	}
}

// deliver gives one token to the client. It reports whether the present attempt goes on: the token
// may complete a stop text, or be wrong.
func (j *Join) deliver(now time.Time, side Side, d drawn) (goesOn bool) {
	t := &j.attempt
	switch _, over := j.naturalEnd(); {
	case over:
		j.broken(now, side, "sent a token after the last")
		return false
	case d.token < 0 || j.p.VocabSize > 0 && int(d.token) >= j.p.VocabSize:
		j.broken(now, side, fmt.Sprintf("sent token %d, which is outside the vocabulary of %d", uint32(d.token), j.p.VocabSize))
		return false
	}
	if j.scores() && t.scored < j.p.PromptTokens-1 {
		j.broken(now, side, fmt.Sprintf("sent a token before log probabilities of the prompt: %d of %d", t.scored, j.p.PromptTokens-1))
		return false
	}
	j.accept()
	if !t.first {
		j.wins(now)
		t.first, t.firstAt = true, now
		j.do(Tell{routing.PromptDone{ID: j.id()}})
		j.contradict()
	}
	switch len(j.tokens) {
	case 0:
		j.firstAt = now
	case 1:
		j.secondAt = now
	}
	j.last = now
	text, stop := j.p.Text.Push(d.token)
	// Where this moves what was delivered before, that stays as it was where it is.
	j.delivers = append(j.delivers, Deliver{Offset: len(j.tokens), Token: d.token, Text: text, Logprobs: d.logprobs})
	j.do(&j.delivers[len(j.delivers)-1])
	j.tokens = append(j.tokens, d.token)
	j.stopped = slices.Contains(j.p.StopTokens, d.token)
	if stop != "" {
		j.succeed(now, inferencev1.FinishReason_FINISH_REASON_STOP, "", stop)
		j.closeAll()
	}
	return j.phase == running
}

// completeIfOver ends the request if decode has ended it and prefill has said all that
// is needed: the first token at any rate, and its account of the transfer if
// that comes soon.
func (j *Join) completeIfOver(now time.Time) {
	t := &j.attempt
	if t.ended == nil {
		return
	}
	if prefillOpen := j.open.find(Stream{j.number, Prefill}) >= 0; t.disaggregated && prefillOpen && (!t.first || !t.sent) {
		if t.waitUntil.IsZero() {
			t.waitUntil = now.Add(j.p.Linger)
		}
		return
	}
	j.complete(now, Decode)
}

// closed takes in the end of a stream.
func (j *Join) closed(now time.Time, e Closed) {
	i := j.open.find(e.Stream)
	if i < 0 {
		return
	}
	asked := j.open[i].closing
	j.open = slices.Delete(j.open, i, i+1)
	if j.phase == finished {
		j.release()
		return
	}
	j.turnTo(e.Stream.Attempt)
	if j.phase != running || e.Stream.Attempt != j.number || asked {
		return
	}
	t := &j.attempt
	side := e.Stream.Side
	t.connections[side] = e.Connection
	switch {
	case t.ended != nil && side == Decode:
		return // all that matters was said
	case t.first && side == Prefill && t.firstEnd == nil && (t.sent || t.admitted || t.ended != nil):
		j.completeIfOver(now)
		return
	}
	err := orEnded(e.Err, side)
	other := Stream{j.number, 1 - side}
	otherOpen := j.open.find(other) >= 0
	switch {
	case t.firstEnd != nil && blamesOther(err):
		j.fail(now, t.firstEnd.side, t.firstEnd.err) // neither says more
	case t.firstEnd == nil && otherOpen && t.mayExplain(other.Side, err):
		t.firstEnd = &ending{side, err}
		t.waitUntil = now.Add(j.p.Linger)
		if rpc.Reason(err) == api.ReasonTransferUnreachable {
			// The other stream rarely explains it: if that worker were dead, its
			// connection would have broken by now.
			t.waitUntil = now.Add(j.p.Linger / 10)
		}
	default:
		j.fail(now, side, err)
	}
}

// blamesOther reports that an end of one stream only says that the other side gave up
// or was lost.
func blamesOther(err error) bool {
	switch rpc.Reason(err) {
	case api.ReasonFinishedAtPrefill, api.ReasonTransferFailed, api.ReasonTransferUnreachable, api.ReasonEndedTooEarly:
		return true
	}
	return status.Code(err) == codes.Canceled
}

// mayExplain reports that the side whose stream is still open may yet say why the other
// one ended with err: a transfer is given up when the first token is also the last, or
// because that side was refused or died. Decode may also have all KV of a prefill that was
// lost after the first token. A decode that has ended well has nothing to explain.
func (t *attempt) mayExplain(side Side, err error) bool {
	switch {
	case !t.disaggregated || side == Decode && t.ended != nil:
		return false
	case !blamesOther(err):
		return side == Decode && t.first && status.Code(err) == codes.Unavailable && rpc.Reason(err) == "" // the transport's word
	}
	return rpc.Reason(err) == api.ReasonTransferFailed || side == Decode || !t.first
}

func orEnded(err error, side Side) error {
	if err != nil {
		return err
	}
	return rpc.Error(codes.Internal, api.ReasonEndedTooEarly, side.String()+" worker ended its stream too early", 0)
}

// FirstTokenIn is how long after now an attempt's first token is due of a request that arrived at a
// time and wants it within ttft; 0: it is not. A retry that is late already and a hedged attempt go
// behind what is due, and after the first token there is nothing left to be in time for.
func FirstTokenIn(now, arrived time.Time, ttft time.Duration, attempt int, hedge, came bool) time.Duration {
	left := arrived.Add(ttft).Sub(now)
	if ttft <= 0 || hedge || came || attempt > 0 && left <= 0 {
		return 0
	}
	return max(left, 1)
}
