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
