package serving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/records"
)

// request drives the life of one request, until the client has its answer and every worker stream is
// closed. It has no goroutine of its own: those of the streams hand it what workers send, one waits for
// each answer of the policy, and timers do the rest.
type request struct {
	requests       *Requests
	plan           *preprocess.Plan // nil once strip was called
	id             string           // as the client knows it; clients may reuse an id
	key            string           // as the router's policy knows it; unique
	log            *slog.Logger
	spans          *requestTrace // nil if the request is not sampled
	record         *records.Record
	arrived        time.Time    // when the request could first ask for workers
	holder         routing.Ref  // a worker that holds the prompt's KV; zero if none is known
	awaited        atomic.Bool  // other requests wait for this one's prompt
	resumed        atomic.Int64 // how often it was resumed, if its tenant has limits
	tenant         string
	resumable      time.Duration // after its readers are gone; 0: not
	owner          string        // the tenant that owns the request; empty if the secret's holder does
	charge         *quota.Charge // nil if the tenant has no limits
	secret         string        // proves that a caller owns the request
	hash           records.SecretHash
	sharing        Sharing
	queued         func(id string, waits bool) // Caller.Queued
	waitsForPrompt bool                        // it counts in Requests.promptWaits; of begin
	events         *eventLog

	ctx     context.Context // ends at the deadline, and when the request is over
	cancel  context.CancelFunc
	loop    *coreloop.Loop[*joining.Join, joining.Event, joining.Action]
	over    func()             // tells the loop's recorder that the request is over
	answers chan joining.Event // the policy's decision; at most one is on its way
	aborted atomic.Bool        // by a client or Stop; the first one counts
	done    chan struct{}      // closed when loop.Core is done

	// Guarded by loop.
	asked    bool                  // the policy was asked; begin waits for its first answer
	version  routing.Version       // of the workers, the same in every attempt; zero: none was chosen yet
	sent     func(routing.Version) // Caller.sent until it is called
	answer   joining.Dispatched    // the policy's last, until the core takes it up
	attempts map[int]*attempt      // the attempts that run, by number; two at most
	running  *attempt              // the youngest of them; nil before the first decision
	accepted bool                  // the client was told so
	taken    bool                  // a worker has taken the request, and not failed but for what the request asks
	tokenAt  time.Time             // when the last token came
	token    *tokenEvent           // reused for the next token; nil if the event log kept it
	streams  map[joining.Stream]context.CancelFunc

	mu        sync.Mutex
	readers   int
	expiry    *time.Timer // aborts the request if no reader comes back; nil with readers
	ended     bool
	until     time.Time     // the end of an ended request's resumability; under requests.mu
	forgotten bool          // no client can join it any more
	lags      bool          // the tenant is charged for unread tokens
	meanState []float32     // set at the end, if the client asked for it
	read      chan struct{} // closed when the request has ended and its readers are gone
}

// attempt is one choice of workers for the request, as the policy decided it.
type attempt struct {
	mode     inferencev1.Mode
	decision *controlv1.Decision // owned by the record
}

// decided is the attempt's decision; nil without an attempt.
func (a *attempt) decided() *controlv1.Decision {
	if a == nil {
		return nil
	}
	return a.decision
}

func newRequest(s *Requests, p *preprocess.Plan, by admitted, id string, c *Caller, spans *requestTrace, number uint64) *request {
	secret := cmp.Or(c.Secret, rpc.NewID())
	ctx, cancel := context.WithDeadline(rpc.WithRequestID(context.Background(), id), p.Deadline)
	hash, key := records.HashOf(secret), id+"#"+strconv.FormatUint(number, 10)
	r := &request{
		requests:  s,
		plan:      p,
		id:        id,
		key:       key,
		log:       s.deps.Logger.With(slog.String("request_id", id)),
		spans:     spans,
		record:    s.deps.Records.Add(by.owner, id, hash, p.Arrived),
		tenant:    p.Envelope.GetTenant(),
		resumable: p.Resumable,
		owner:     by.owner,
		charge:    by.charge,
		secret:    secret,
		sharing:   c.Sharing,
		queued:    c.Queued,
		sent:      c.sent,
		arrived:   p.Arrived,
		hash:      hash,
		read:      make(chan struct{}),
		ctx:       ctx,
		cancel:    cancel,
		answers:   make(chan joining.Event, 1),
		done:      make(chan struct{}),
		streams:   make(map[joining.Stream]context.CancelFunc),
		attempts:  make(map[int]*attempt),
	}
	join, recorder, ended := routerlog.NewRequest(s.deps.Log, joining.Params{
		ID:             key,
		Version:        c.version,
		Arrived:        p.Arrived,
		Tokenized:      p.Tokenized,
		PromptTokens:   len(p.Tokens),
		MaxTokens:      p.MaxTokens,
		StopTokens:     p.StopTokens,
		Deadline:       p.Deadline,
		VocabSize:      p.Model.Spec.VocabSize,
		Text:           newText(p.Model.Tokenizer, p.Tokens, p.Stops, p.MinTokens, p.Shown),
		Logprobs:       p.Logprobs != nil,
		TopLogprobs:    p.TopLogprobs(),
		PromptLogprobs: p.PromptLogprobs != nil, TopPromptLogprobs: p.TopPromptLogprobs(),
		MeanState:   p.Pool,
		MaxAttempts: s.config.MaxAttempts,
		MaxRefusals: joining.DefaultMaxRefusals,
		Linger:      joining.DefaultLinger,
		Silence:     s.config.Silence,
	})
	r.loop, r.over = coreloop.New(join, r.apply), ended
	r.loop.Tick = func() { r.handle(joining.Tick{}) }
	r.awaited.Store(r.sharing.Prompt != nil && r.sharing.First)
	if recorder != nil {
		r.loop.Now, r.loop.Recorder = s.deps.Log.Now, recorder
	}
	r.events = newEventLog(s.memory, r.tenant, r.resumable > 0, r.abort)
	s.wait.Add(1) // until conclude returns
	return r
}

// begin asks for workers as soon as the request may, and waits for the answer.
func (r *request) begin() {
	if r.waitsForPrompt && r.queued != nil {
		r.queued(r.id, true)
	}
	select {
	case <-r.done:
		r.endPromptWait()
		return
	case <-r.mayStart():
	}
	r.takePrompt()
	r.handle(joining.Start{})
	if r.queued != nil {
		answered, refused := r.answeredAtOnce()
		if !refused {
			r.queued(r.id, false)
		}
		if answered {
			return
		}
	}
	r.awaitAnswer()
}

// answeredAtOnce takes in the policy's answer, if there is one already. refused: that was all.
func (r *request) answeredAtOnce() (answered, refused bool) {
	select {
	case event := <-r.answers:
		r.handle(event)
		answered = true
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return answered, r.ended
}

// awaitAnswer takes in the policy's answer, or returns when none is waited for any more.
func (r *request) awaitAnswer() {
	select {
	case <-r.done:
	case event := <-r.answers:
		r.handle(event)
	}
}

// conclude follows the end of all, on a goroutine of its own. It returns when the readers are gone.
func (r *request) conclude() {
	r.loop.StopTicks()
	r.loop.Lock()
	r.spans.allReleased()
	r.strip()
	r.over()
	r.loop.Unlock()
	r.cancel()
	s := r.requests
	select {
	case <-r.read:
	case <-s.readersCut:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 && s.stopping {
		close(s.idle)
	}
}

// strip drops what only a running request needs, if it is kept to be resumed. The loop's lock is held.
func (r *request) strip() {
	if r.resumable == 0 {
		return
	}
	r.plan, r.running, r.token, r.answer = nil, nil, nil, joining.Dispatched{}
	clear(r.attempts)
}

// abort ends the request from any goroutine. It does not wait.
func (r *request) abort(err error) {
	if !r.aborted.Swap(true) {
		go r.handle(joining.Abort{Err: err})
	}
}

// expired is called when the request's context has ended.
func (r *request) expired() {
	if r.ctx.Err() == context.DeadlineExceeded { // and not since the request is over
		r.handle(joining.Abort{Err: clienterr.DeadlineExceeded()})
	}
}

// handle gives the core an event, unless the request is over.
func (r *request) handle(event joining.Event) {
	r.loop.Lock()
	defer r.loop.Unlock()
	select {
	case <-r.done: // it crossed the end
		return
	default:
	}
	switch e := event.(type) {
	case joining.Closed:
		r.streams[e.Stream]()
		delete(r.streams, e.Stream)
	case joining.Dispatched:
		r.answer = e
	case joining.Refused:
		if e.Decision != nil {
			r.record.Decided(e.Decision)
		}
		if refusal, is := errors.AsType[*routing.Refusal](e.Err); is && refusal.Reason == api.ReasonRetryBudget {
			r.requests.metrics.spent.Inc()
		}
	}
	r.loop.Step(event)
	r.passPrompt()
	if r.loop.Core.Done() {
		close(r.done)
		go func() {
			defer r.requests.wait.Done()
			r.conclude()
		}()
	}
}

// began records an attempt that begins: the core has taken up the policy's answer.
func (r *request) began() {
	e := r.answer
	r.answer = joining.Dispatched{}
	r.version, r.running = e.Version, &attempt{e.Decision.GetMode(), e.Decision}
	r.attempts[e.Attempt] = r.running
	if r.sent != nil {
		r.sent(r.version)
		r.sent = nil
	}
	r.record.Decided(e.Decision)
	r.requests.metrics.dispatched(e.Decision, e.Fallback)
}

// released records an attempt that is over.
func (r *request) released(a joining.Release) {
	r.requests.deps.Dispatcher.Handle(routing.Ended{ID: a.ID, Failures: a.Failures, Served: a.Served, Tokens: a.Tokens, Decoding: a.Decoding, Lost: a.Late()})
	r.spans.released(a)
	r.requests.metrics.hedged(a)
	of := r.attempts[a.Attempt]
	if of == nil { // it had not begun
		return
	}
	if a.Err != nil {
		r.taken = r.taken && (a.Beside || status.Code(a.Err) == codes.InvalidArgument)
		r.record.Failed(of.decision, a.Failures, a.Err)
		r.requests.metrics.retried(a.Failures, a.Err)
		r.log.Warn("workers failed in request", slog.Int("attempt", a.Attempt),
			slog.String("code", status.Code(a.Err).String()), slog.String("error", status.Convert(a.Err).Message()))
	}
	if a.Late() {
		r.record.Lost(of.decision)
	}
	if !a.Beside {
		return // it stays the running one: finish reads its decision
	}
	delete(r.attempts, a.Attempt)
	for _, other := range r.attempts {
		r.running = other
	}
}

// handleDecode gives the core a message of a decode stream, mostly a token. The caller may
// reuse the message afterwards.
func (r *request) handleDecode(m joining.DecodeMessage) {
	coreloop.Handle(r.loop, (*joining.Join).HandleDecode, m)
	if r.awaited.Load() {
		r.loop.Lock()
		defer r.loop.Unlock()
		r.passPrompt()
	}
}

// apply carries out the core's actions. It is called under the loop's lock, which comes
// before all others.
func (r *request) apply(now time.Time, actions []joining.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case joining.Ask:
			r.ask(a)
		case joining.AskHedge:
			r.askHedge(a)
		case joining.Withdraw:
			r.requests.deps.Dispatcher.Withdraw(r.key)
		case joining.OpenDecode:
			r.began()
			r.spans.began(a.Stream.Attempt, len(a.Generated), r.attempts[a.Stream.Attempt].decision)
			r.openDecode(a)
		case joining.OpenPrefill:
			r.openPrefill(a)
		case joining.Close:
			r.streams[a.Stream]()
		case joining.Tell:
			r.tell(a.Event)
		case joining.CheckProgress:
			r.loop.Step(joining.Progressed{Stream: a.Stream, At: r.requests.deps.Dispatcher.Progressed(a.Worker)})
		case joining.Release:
			r.released(a)
		case joining.Accept:
			r.accepted = true
			r.events.append(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{
				RequestId:         r.id,
				Model:             r.plan.Model.Spec.Name,
				PromptTokens:      uint32(len(r.plan.Tokens)),
				Seed:              r.plan.Sampling.GetSeed(),
				SystemFingerprint: r.version.Fingerprint(),
				Secret:            r.secret,
				ToolCallFormat:    r.plan.ToolCalls,
				Ignored:           r.plan.Ignored,
			}}})
			if r.plan.PromptLogprobs != nil && len(r.plan.Tokens) == 1 { // no worker sends log probabilities for a single token
				r.events.append(promptEvent(joining.DeliverPrompt{Offset: 1}, r.plan))
			}
		case *joining.Deliver:
			if r.token == nil {
				r.token = newTokenEvent()
			}
			r.token.set(a, logprobsOf(a, r.plan.Model.Tokenizer, r.plan.Shown))
			if kept := r.events.append(&r.token.event); kept {
				r.token = nil
			}
			r.requests.metrics.token(r.running.mode, now, r.tokenAt)
			r.tokenAt = now
		case joining.DeliverPrompt:
			r.events.append(promptEvent(a, r.plan))
		case joining.Finish:
			r.finish(now, a)
		}
	}
}

// tell hands an event to the routing core.
func (r *request) tell(event routing.Event) {
	r.requests.deps.Dispatcher.Handle(event)
	switch e := event.(type) {
	case routing.Taken:
		r.taken = true
	case routing.Contradicted:
		r.requests.metrics.wronged.Inc()
		r.log.Warn("worker failed a request that others serve", slog.String("worker", e.Worker.ID), slog.String("error", e.Why))
	case routing.Fetched:
		r.requests.metrics.fetchedFrom(e.Verdict)
	}
}

func (r *request) finish(now time.Time, f joining.Finish) {
	err := clienterr.Status(f.Err)
	r.mu.Lock()
	r.ended, r.meanState = true, f.MeanState
	told := r.readers > 0
	if r.expiry != nil {
		r.expiry.Stop()
	}
	if r.readers == 0 {
		r.wasRead()
	} else if r.lags = r.events.lags(); r.lags {
		r.requests.deps.Dispatcher.Handle(routing.Unread{Tenant: r.tenant})
	}
	r.mu.Unlock()
	if err == nil {
		r.events.append(&inferencev1.GenerateEvent{
			Offset: uint64(f.Usage.GetCompletionTokens()),
			Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
				Reason: f.Reason, Text: f.Text, Stop: f.Stop, Usage: f.Usage, Route: f.Route, Timings: f.Timings,
			}},
		})
	}
	r.record.Ended(now, err, f, r.running.decided())
	r.requests.metrics.ended(now, err, f)
	r.chargeUsed(err, told)
	r.requests.keep(r)
	r.events.end(err)
	r.spans.finished(f, err)
	r.log.Debug("request ended", slog.String("status", rpc.CodeName(status.Code(err))), slog.Int("tokens", r.loop.Core.Tokens()))
}
