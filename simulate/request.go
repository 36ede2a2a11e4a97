package simulate

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// request is a request at its router.
type request struct {
	// The fields that every token needs come first, to share cache lines.
	router      *router
	load        *load
	inbox       inbox[joining.Event]
	ended       bool
	keeps       bool // keep the answer
	answered    int  // tokens so far
	recentCount int
	recent      [8]time.Duration // arrivals that are not in arrivals yet
	join        joining.Join
	arrivals    []record.Arrival // without the recent ones

	timer    timer
	until    time.Time // the earlier of deadline and leaves
	key      string
	record   *record.Record
	from     *workload.Request
	asked    int // the attempt of the last Ask
	hedged   int // the attempt of the last AskHedge
	version  routing.Version
	deadline time.Time
	leaves   time.Time                           // when the client goes away; zero: it stays
	tokens   []int32                             // the prompt
	ids      []uint32                            // the prompt as in tasks; nil before the first task
	hashes   map[routing.BlockKey][]kvcache.Hash // of the last Ask
	answer   []uint32                            // kept if the next request of a conversation depends on it
	streams  []*stream                           // open streams, rarely more than two
	few      [2]stream                           // memory of the first two streams
	opened   int                                 // streams of few in use
}

// mostExpected bounds the tokens of an answer that memory is allocated for in advance.
const mostExpected = 1024

// stream is the router's side of a call at a worker.
type stream struct {
	request    *request
	name       joining.Stream
	connection *connection
	over       bool // the core has had Closed
	cancelled  bool
	number     uint64  // of the connection
	call       *call   // the worker's side; nil until the call has arrived
	before     *stream // the previous open stream of the connection
	behind     *stream
	hashes     map[routing.BlockKey][]kvcache.Hash // of its task; nil once the worker has taken them
}

// noText stands for text: nobody reads it here.
type noText struct{}

func (noText) Push(int32) (text, stop string) { return "", "" }
func (noText) Flush() (text, stop string)     { return "", "" }

// handle gives an event to the request's core and carries out the actions.
func (q *request) handle(event joining.Event) {
	if q.inbox.put(event) {
		q.empty()
	}
}

// next is the time of the next tick.
func (q *request) next() (at time.Time, wants bool) {
	at, wants = q.join.Next()
	if q.ended {
		return at, wants
	}
	if !wants || q.until.Before(at) {
		at = q.until
	}
	return at, true
}

// tick tells the core that time has passed.
func (q *request) tick() {
	switch now := q.router.cluster.now; {
	case q.ended:
		q.handle(joining.Tick{})
	case !q.leaves.IsZero() && !now.Before(q.leaves):
		q.handle(joining.Abort{Err: status.Error(codes.Canceled, "the client went away")})
	case !now.Before(q.deadline):
		q.handle(joining.Abort{Err: rpc.Error(codes.DeadlineExceeded, api.ReasonDeadline, "the request's time is over", 0)})
	default:
		q.handle(joining.Tick{})
	}
}

// drawn is handle for tokens, without allocations.
func (q *request) drawn(m joining.DecodeMessage) {
	q.inbox.begin()
	for _, action := range q.join.HandleDecode(q.router.cluster.now, m) {
		q.act(action)
	}
	if q.join.Stands() && !q.inbox.more() {
		q.inbox.busy = false // and the timer stays as it is
		return
	}
	q.empty()
}

// empty handles the events in the inbox.
func (q *request) empty() {
	for e, more := q.inbox.next(); more; e, more = q.inbox.next() {
		for _, action := range q.join.Handle(q.router.cluster.now, e) {
			q.act(action)
		}
	}
	q.timer.set()
}

func (q *request) act(action joining.Action) {
	switch a := action.(type) {
	case joining.Ask:
		q.ask(a)
	case joining.AskHedge:
		q.hedged = a.Attempt
		q.arrives(a.ID, a.Attempt, a.Generated, a.Failures, a.Version, func(r routing.Request) routing.Event {
			return routing.Hedge{Request: r, Late: a.Late, After: a.After, Again: a.Again}
		})
	case joining.Withdraw:
		delete(q.router.asking, q.key)
		q.router.handle(routing.Cancelled{ID: q.key})
		q.router.handle(routing.Ended{ID: q.key})
	case joining.OpenDecode:
		request := &workerv1.DecodeRequest{Task: q.task(a.Stream.Attempt, a.Generated), PrefillHere: a.PrefillHere, WorkerEpoch: a.Worker.Epoch, Pauses: true, Queued: true}
		q.open(a.Stream, a.Worker, len(request.GetTask().GetTokenIds()), func(s *stream, p *process) {
			p.serve(s, request.GetWorkerEpoch(), request.GetTask(), func(r scheduler.Request) worker.Event {
				r.Kind = scheduler.Receive
				if request.GetPrefillHere() {
					r.Kind = scheduler.Full
				}
				return worker.Generate{Request: r, Pauses: request.GetPauses(), Queued: request.GetQueued()}
			}, nil)
		})
	case joining.OpenPrefill:
		request := &workerv1.PrefillRequest{Task: q.task(a.Stream.Attempt, a.Generated), Ticket: a.Ticket, Source: a.Source, WorkerEpoch: a.Worker.Epoch, Queued: true}
		q.open(a.Stream, a.Worker, len(request.GetTask().GetTokenIds()), func(s *stream, p *process) {
			p.serve(s, request.GetWorkerEpoch(), request.GetTask(), func(r scheduler.Request) worker.Event {
				r.Kind = scheduler.PrefillOnly
				return worker.Prefill{Request: r, Held: int(request.GetTicket().GetHeldBlocks()), Fetch: request.GetSource() != nil, Queued: request.GetQueued()}
			}, request)
		})
	case joining.Close:
		if i := slices.IndexFunc(q.streams, func(s *stream) bool { return s.name == a.Stream }); i >= 0 {
			q.streams[i].cancel()
		}
	case joining.Tell:
		q.router.handle(a.Event)
	case joining.CheckProgress:
		q.handle(joining.Progressed{Stream: a.Stream, At: q.router.core.Progressed(a.Worker)})
	case joining.Release:
		q.router.cluster.hedges.released(a)
		q.router.handle(routing.Ended{ID: a.ID, Failures: a.Failures, Served: a.Served, Tokens: a.Tokens, Decoding: a.Decoding, Lost: a.Late()})
	case joining.Accept:
		q.record.Admitted = q.load.now()
		q.load.admitted++
	case *joining.Deliver:
		q.router.cluster.watch.delivered(q)
		if q.ended {
			return
		}
		if q.answered++; q.answered == 1 {
			q.ids, q.hashes = nil, nil // rarely needed again
			q.arrivals = make([]record.Arrival, 0, min(q.from.MaxTokens, mostExpected))
		}
		if q.recentCount == len(q.recent) {
			q.allArrivals()
		}
		q.recent[q.recentCount] = q.load.now()
		q.recentCount++
		if q.keeps {
			q.answer = append(q.answer, uint32(a.Token))
		}
		q.load.tokens++
	case joining.Finish:
		q.finish(a)
	}
}

// allArrivals moves the recent arrivals to arrivals and returns all. Recent ones are kept apart,
// since the end of a long list is in no cache when the next token comes.
func (q *request) allArrivals() []record.Arrival {
	for _, at := range q.recent[:q.recentCount] {
		q.arrivals = append(q.arrivals, record.Arrival{At: at, Tokens: 1})
	}
	q.recentCount = 0
	return q.arrivals
}

func (q *request) task(attempt int, generated []int32) *workerv1.Task {
	c := q.router.cluster
	if q.ids == nil {
		q.ids = tokenIDs(make([]uint32, 0, len(q.tokens)), q.tokens)
	}
	ids := q.ids
	if len(generated) > 0 {
		ids = tokenIDs(slices.Grow(slices.Clone(ids), len(generated)), generated)
	}
	return &workerv1.Task{
		Envelope: &inferencev1.Envelope{RequestId: q.key, Attempt: uint32(attempt), Tenant: q.from.Tenant, Priority: q.from.Priority, CacheSalt: q.from.CacheSalt, Slo: c.slo},
		Model:    c.spec.Name, ModelDigest: q.version.Digest, TokenIds: ids, Generated: uint32(len(generated)), MaxTokens: uint32(q.from.MaxTokens),
		Sampling:     &inferencev1.Sampling{Temperature: &q.from.Temperature, Seed: &q.from.Seed},
		FirstTokenNs: int64(joining.FirstTokenIn(c.now, q.load.start.Add(q.record.Dispatched), c.config.TTFT, attempt, attempt > 0 && attempt == q.hedged, len(generated) > 0)),
	}
}

func tokenIDs(ids []uint32, tokens []int32) []uint32 {
	for _, token := range tokens {
		ids = append(ids, uint32(token))
	}
	return ids
}

// ask asks the policy for the workers of the next attempt.
func (q *request) ask(a joining.Ask) {
	q.asked = a.Attempt
	q.arrives(q.key, a.Attempt, a.Generated, a.Failures, a.Version, func(r routing.Request) routing.Event {
		r.Retry = a.Retry
		return routing.Arrived{Request: r}
	})
}

// arrives gives an attempt to the policy.
func (q *request) arrives(id string, attempt int, generated []int32, failures []routing.Failure, version routing.Version, event func(routing.Request) routing.Event) {
	tokens := q.tokens
	if len(generated) > 0 {
		tokens = slices.Concat(tokens, generated)
	}
	r := routing.Request{
		ID: id, Attempt: attempt, Tenant: q.from.Tenant, Model: q.router.cluster.spec.Name, Mode: q.router.cluster.config.Mode,
		Priority: q.from.Priority, Arrived: q.load.start.Add(q.record.Dispatched), Deadline: q.deadline, Tokens: len(tokens), MaxNew: q.from.MaxTokens - len(generated),
		TTFT: q.router.cluster.config.TTFT, TPOT: q.router.cluster.config.TPOT, Failures: failures, Version: version,
	}
	r.SetHashes(q.router.core.BlockKeys(r.Model, r.Version), q.from.CacheSalt, tokens)
	q.hashes = r.Hashes
	q.router.asking[id] = q
	q.router.handle(event(r))
}

func (q *request) dispatched(a routing.Dispatch) {
	q.version = a.Version
	q.handle(joining.Dispatched{Attempt: q.attemptOf(a.ID), Began: q.router.cluster.now, Dispatch: a}) // a decision takes no virtual time
}

// attemptOf is the attempt that an answer of the policy is for.
func (q *request) attemptOf(id string) int {
	if id == q.key {
		return q.asked
	}
	return q.hedged
}

// open opens a stream. serve runs at the worker.
func (q *request) open(name joining.Stream, to routing.Ref, tokens int, serve func(*stream, *process)) {
	s := q.stream()
	*s = stream{request: q, name: name, hashes: q.hashes}
	q.streams = append(q.streams, s)
	n := q.router.connections[to]
	if n == nil || n.process == nil {
		if n != nil {
			s.number = n.number
		}
		s.finish(status.Errorf(codes.Unavailable, "there is no connection to worker %s", to.ID))
		return
	}
	s.connection, s.number = n, n.number
	n.add(s)
	p := n.process
	n.there.send(messageBytes+tokens*tokenBytes, func() {
		if !p.dead && !s.cancelled {
			serve(s, p)
		}
	})
}

// stream returns an unused stream.
func (q *request) stream() *stream {
	if q.opened == len(q.few) {
		return new(stream)
	}
	q.opened++
	return &q.few[q.opened-1]
}

// toClient delivers a message of the worker to the router, after waiting tokens.
func (s *stream) toClient(bytes int, deliver func()) {
	s.connection.flush()
	s.connection.back.send(bytes, func() {
		if !s.over {
			deliver()
		}
	})
}

// end ends the stream at the worker.
func (s *stream) end(err error) { s.toClient(messageBytes, func() { s.finish(err) }) }

// finish tells the core that the stream has ended.
func (s *stream) finish(err error) {
	if s.over {
		return
	}
	s.over = true
	s.request.streams = slices.DeleteFunc(s.request.streams, func(o *stream) bool { return o == s })
	if s.connection != nil {
		s.connection.remove(s)
	}
	s.request.handle(joining.Closed{Stream: s.name, Err: err, Connection: s.number})
}

// cancel ends the stream at the router and tells the worker.
func (s *stream) cancel() {
	if s.over {
		return
	}
	s.cancelled = true
	err := status.Error(codes.Canceled, "context canceled")
	if n := s.connection; n != nil {
		n.there.send(messageBytes, func() {
			if c := s.call; c != nil && !c.process.dead {
				c.process.handle(worker.Cancel{ID: c.id, Err: err})
			}
		})
	}
	s.finish(err)
}

func (q *request) decoded(s *stream, event *workerv1.DecodeEvent) {
	q.handle(joining.DecodeMessage{Attempt: s.name.Attempt, Event: event})
}

func (q *request) prefilled(s *stream, event *workerv1.PrefillEvent) {
	q.handle(joining.PrefillMessage{Attempt: s.name.Attempt, Event: event})
}

// statusOf is the gRPC status of a refusal.
func statusOf(r *routing.Refusal) error { return rpc.Error(r.Code, r.Reason, r.Message, r.RetryAfter) }
