package serving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
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

// request drives one request's life. Its goroutine lives until the client has its answer and
// every worker stream is closed; those of the streams hand in themselves what workers say.
type request struct {
	requests *Requests
	plan     *preprocess.Plan
	id       string
	key      string // names it to the policy: clients may use an id again
	log      *slog.Logger
	spans    *requestTrace // nil: not sampled
	record   *records.Record
	arrived  time.Time     // when workers could be asked for
	holder   routing.Ref   // a worker that has the prompt's KV; zero: none is known
	leads    atomic.Bool   // others wait for its prompt
	resumed  atomic.Int64  // how often it was, where its tenant has limits
	owner    string        // the tenant that it belongs to; empty: who has the secret
	charge   *quota.Charge // nil: its tenant has no limits
	secret   string        // that its caller has
	sharing  Sharing
	hash     records.SecretHash // of that
	events   *eventLog

	ctx     context.Context // ends at the deadline, and with the goroutine
	cancel  context.CancelFunc
	loop    *coreloop.Loop[*joining.Join, joining.Event, joining.Action]
	over    func()             // says so to loop's recorder
	answers chan joining.Event // from the policy, at most one
	aborts  chan error         // from clients and Stop, the first counts
	done    chan struct{}      // closed when loop is

	// Guarded by loop.
	version routing.Version  // of the workers, the same in every try
	tries   map[int]*attempt // those that run, by number: two at most
	running *attempt         // the one of them that began last
	tokenAt time.Time        // when the last token came
	token   *tokenEvent      // the last one, which nobody has if it was handed to the reader; nil: another has to be made
	streams map[joining.Stream]context.CancelFunc

	mu        sync.Mutex
	readers   int
	expiry    *time.Timer // while nobody reads
	ended     bool
	until     time.Time     // it can be resumed, once it has ended; under requests.mu
	forgotten bool          // nobody can join it any more
	lags      bool          // its tenant is charged for what is not read
	meanState []float32     // once it has ended, if it was asked for
	read      chan struct{} // closed when it has ended and its first reader is gone
}

// attempt is a try as it was decided.
type attempt struct {
	mode     inferencev1.Mode
	decision *controlv1.Decision // which the record owns
}

// decided is its decision; nil: there was none.
func (a *attempt) decided() *controlv1.Decision {
	if a == nil {
		return nil
	}
	return a.decision
}

// maxReaders is how many may read one request's answer at a time.
const maxReaders = 8

func newRequest(s *Requests, p *preprocess.Plan, by admitted, id string, c *Caller, spans *requestTrace, number uint64) *request {
	secret := cmp.Or(c.Secret, rpc.NewID())
	ctx, cancel := context.WithDeadline(rpc.WithRequestID(context.Background(), id), p.Deadline)
	hash, key := records.HashOf(secret), id+"#"+strconv.FormatUint(number, 10)
	r := &request{
		requests: s,
		plan:     p,
		id:       id,
		key:      key,
		log:      s.deps.Logger.With(slog.String("request_id", id)),
		spans:    spans,
		record:   s.deps.Records.Add(by.owner, id, hash, p.Arrived),
		owner:    by.owner,
		charge:   by.charge,
		secret:   secret,
		sharing:  c.Sharing,
		arrived:  p.Arrived,
		hash:     hash,
		read:     make(chan struct{}),
		ctx:      ctx,
		cancel:   cancel,
		answers:  make(chan joining.Event, 1),
		aborts:   make(chan error, 1),
		done:     make(chan struct{}),
		streams:  make(map[joining.Stream]context.CancelFunc),
		tries:    make(map[int]*attempt),
	}
	join, recorder, ended := routerlog.NewRequest(s.deps.Log, joining.Params{
		ID:             key,
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
		MaxAttempts: s.config.MaxAttempts,
		MaxRefusals: joining.DefaultMaxRefusals,
		Linger:      joining.DefaultLinger,
		Silence:     s.config.Silence,
	})
	r.loop, r.over = coreloop.New(join, r.apply), ended
	r.leads.Store(r.sharing.Prompt != nil && r.sharing.First)
	if recorder != nil {
		r.loop.Now, r.loop.Recorder = s.deps.Log.Now, recorder
	}
	r.events = newEventLog(s.account, p.Resumable > 0, r.abort)
	return r
}

// run is the request's goroutine.
func (r *request) run() {
	defer r.cancel()
	defer r.over()
	defer r.spans.allReleased()
	r.spans.planned(r.id, r.plan)
	turn, deadline := r.turn(), r.ctx.Done()
	for {
		due := r.loop.Due()
		select {
		case <-r.done:
			return
		case <-turn:
			turn = nil
			r.begins()
			r.handle(joining.Start{})
		case event := <-r.answers:
			r.handle(event)
		case err := <-r.aborts:
			r.handle(joining.Abort{Err: err})
		case <-deadline:
			deadline = nil
			r.handle(joining.Abort{Err: clienterr.DeadlineExceeded()})
		case <-r.loop.Woken():
		case <-due:
			if r.loop.TickDue() {
				r.handle(joining.Tick{})
			}
		}
	}
}

// abort ends the request from any goroutine. It does not wait.
func (r *request) abort(err error) {
	select {
	case r.aborts <- err:
	default: // one is on its way
	}
}

// handle takes in an event.
func (r *request) handle(event joining.Event) {
	r.loop.Lock()
	defer r.loop.Unlock()
	switch e := event.(type) {
	case joining.Closed:
		r.streams[e.Stream]()
		delete(r.streams, e.Stream)
	case joining.Dispatched:
		r.decided(e)
	case joining.Refused:
		if e.Decision != nil {
			r.record.Decided(e.Decision)
		}
		if refusal, is := errors.AsType[*routing.Refusal](e.Err); is && refusal.Reason == api.ReasonRetryBudget {
			r.requests.metrics.spent.Inc()
		}
	}
	r.loop.Step(event)
	r.lead()
	if r.loop.Core.Done() {
		select {
		case <-r.done:
		default:
			close(r.done)
		}
	}
}

// decided takes in that a try is about to begin.
func (r *request) decided(e joining.Dispatched) {
	r.version, r.running = e.Version, &attempt{e.Decision.GetMode(), e.Decision}
	r.tries[e.Attempt] = r.running
	r.record.Decided(e.Decision)
	r.requests.metrics.dispatched(e.Decision, e.Fallback)
}

// released takes in that a try is over.
func (r *request) released(a joining.Release) {
	r.requests.deps.Dispatcher.Handle(routing.Ended{ID: a.ID, Failures: a.Failures, Served: a.Served, Tokens: a.Tokens, Decoding: a.Decoding, Lost: a.Lost})
	r.spans.released(a)
	r.requests.metrics.hedged(a)
	of := r.tries[a.Attempt]
	if of == nil { // it had not begun
		return
	}
	if a.Err != nil {
		r.record.Failed(of.decision, a.Failures, a.Err)
		r.requests.metrics.retried(a.Failures, a.Err)
		r.log.Warn("workers failed in request", slog.Int("attempt", a.Attempt),
			slog.String("code", status.Code(a.Err).String()), slog.String("error", status.Convert(a.Err).Message()))
	}
	if a.Lost {
		r.record.Lost(of.decision)
	}
	if !a.Beside {
		return // what is left may be asked of it
	}
	delete(r.tries, a.Attempt)
	for _, other := range r.tries {
		r.running = other
	}
}

// handleDecode takes in a message of a decode stream, which is mostly a token. What it holds
// may be used again afterwards.
func (r *request) handleDecode(m joining.DecodeMessage) {
	coreloop.Handle(r.loop, (*joining.Join).HandleDecode, m)
	if r.leads.Load() {
		r.loop.Lock()
		defer r.loop.Unlock()
		r.lead()
	}
}

// apply carries out what the request's life asks for. The loop's lock, which it is called
// under, is taken before all others.
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
			r.spans.began(a.Stream.Attempt, len(a.Generated), r.tries[a.Stream.Attempt].decision)
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
			r.events.append(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{
				RequestId:         r.id,
				Model:             r.plan.Model.Spec.Name,
				PromptTokens:      uint32(len(r.plan.Tokens)),
				Seed:              r.plan.Sampling.GetSeed(),
				SystemFingerprint: r.version.Fingerprint(),
				Secret:            r.secret,
				ToolCallFormat:    r.plan.ToolCalls,
			}}})
			if r.plan.PromptLogprobs != nil && len(r.plan.Tokens) == 1 { // no worker has anything to say
				r.events.append(promptEvent(joining.DeliverPrompt{Offset: 1}, r.plan))
			}
		case *joining.Deliver:
			if r.token == nil {
				r.token = newTokenEvent()
			}
			r.token.set(a, logprobsOf(a, r.plan.Model.Tokenizer))
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

// tell hands an event on to the routing core.
func (r *request) tell(event routing.Event) {
	r.requests.deps.Dispatcher.Handle(event)
	switch e := event.(type) {
	case routing.Contradicted:
		r.requests.metrics.wronged.Inc()
		r.log.Warn("worker failed a request that others serve", slog.String("worker", e.Worker.ID), slog.String("error", e.Why))
	case routing.Fetched:
		r.requests.metrics.fetchedFrom(e.Verdict)
	}
}

// ask asks the policy for the workers of the next try.
func (r *request) ask(a joining.Ask) {
	clear(r.tries)
	tokens := slices.Concat(r.plan.Tokens, a.Generated)
	wanted := r.wanted(r.key, a.Attempt, tokens, a.Failures, a.Version)
	if wanted.Retry = a.Retry; a.Retry {
		r.requests.metrics.again.Inc()
	}
	r.requests.deps.Dispatcher.Ask(wanted, r.findable(tokens), r.plan.Envelope.GetCacheSalt(), r.answers)
}

// askHedge asks for those of a second try, which it is told at once.
func (r *request) askHedge(a joining.AskHedge) {
	tokens := slices.Concat(r.plan.Tokens, a.Generated)
	wanted := r.wanted(a.ID, a.Attempt, tokens, a.Failures, a.Version)
	answer := r.requests.deps.Dispatcher.Hedge(routing.Hedge{Request: wanted, Late: a.Late, After: a.After, Again: a.Again}, r.findable(tokens), r.plan.Envelope.GetCacheSalt())
	switch e := answer.(type) {
	case joining.Dispatched:
		r.decided(e)
	case joining.Refused:
		r.requests.metrics.hedgeRefused(e.Err)
	}
	r.loop.Step(answer)
}

// wanted is what the policy has to know of a try.
func (r *request) wanted(id string, attempt int, tokens []int32, failures []routing.Failure, version routing.Version) routing.Request {
	p := r.plan
	return routing.Request{
		ID:       id,
		Attempt:  attempt,
		Tenant:   p.Envelope.GetTenant(),
		Model:    p.Model.Spec.Name,
		Mode:     p.Envelope.GetMode(),
		Priority: p.Envelope.GetPriority(),
		Arrived:  r.arrived,
		Deadline: p.Deadline,
		Tokens:   len(tokens),
		Holder:   r.holder,
		MaxNew:   p.MaxTokens - (len(tokens) - len(p.Tokens)),
		TTFT:     p.Envelope.GetSlo().GetTtft().AsDuration(),
		TPOT:     p.Envelope.GetSlo().GetTpot().AsDuration(),
		Class:    p.Envelope.GetSlo().GetClass(),
		Failures: failures,
		Version:  version,
	}
}

func (r *request) finish(now time.Time, f joining.Finish) {
	err := clienterr.Status(f.Err)
	r.mu.Lock()
	r.ended, r.meanState = true, f.MeanState
	if r.expiry != nil {
		r.expiry.Stop()
	}
	if r.readers == 0 {
		r.wasRead()
	} else if r.lags = r.events.lags(); r.lags {
		r.requests.deps.Dispatcher.Handle(routing.Unread{Tenant: r.plan.Envelope.GetTenant()})
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
	r.chargeUsed()
	r.requests.keep(r)
	r.events.end(err)
	r.spans.finished(f, err)
	r.log.Debug("request ended", slog.String("status", rpc.CodeName(status.Code(err))), slog.Int("tokens", r.loop.Core.Tokens()))
}

// attach counts a reader, if there may be one more.
func (r *request) attach() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readers >= maxReaders {
		return false
	}
	r.readers++
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
	return true
}

// wasRead says that nobody reads the answer of a request that has ended; mu is held.
func (r *request) wasRead() {
	select {
	case <-r.read:
	default:
		close(r.read)
	}
	if r.lags {
		r.lags = false
		r.requests.deps.Dispatcher.Handle(routing.Read{Tenant: r.plan.Envelope.GetTenant()})
	}
	if r.forgotten || r.plan.Resumable == 0 {
		r.events.release()
	}
}

// forget says that nobody can join the request any more.
func (r *request) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgotten = true
	if r.readers == 0 {
		r.events.release()
		return
	}
	r.events.keep(false)
}

// detach says that a reader is gone; with the last one the request goes on only
// for as long as it can be resumed.
func (r *request) detach(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
	switch {
	case r.readers > 0:
	case r.ended:
		r.wasRead()
	case r.plan.Resumable == 0:
		r.events.release()
		r.abort(why)
	default:
		r.expiry = time.AfterFunc(r.plan.Resumable, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.readers == 0 {
				r.abort(rpc.Error(codes.Canceled, api.ReasonClientGone, "the client did not come back in time", 0))
			}
		})
	}
}
