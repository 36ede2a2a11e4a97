package serving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/records"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
)

// Config is how requests are served.
type Config struct {
	joining.Limits
	Silence routing.Silence // how long a worker may be silent in a request
	// KeptLogs is the largest number of finished requests that can still be resumed, and
	// KeptMemory roughly their memory. The oldest of the tenant that has most are forgotten first.
	KeptLogs   int
	KeptMemory bytesize.Size
	// UnreadMemory bounds all answers that clients have not read yet, UnreadRequest each
	// of them. Vectors that are being computed may take half as much, beside it.
	UnreadMemory, UnreadRequest bytesize.Size
	// CacheByTenant keeps the cached prefixes of tenants apart, on workers and in stores.
	CacheByTenant bool
}

// Deps is what requests are served with.
type Deps struct {
	Models     *preprocess.Models
	Dispatcher *routingdriver.Dispatcher
	Records    *records.Ring
	Spending   *latencybudget.Spending
	Quota      *quota.Limiter // limits of tenants, where callers need keys
	Log        *eventlog.Log  // nil: nothing is recorded
	Tracing    Tracing
	Registerer prometheus.Registerer // nil: metrics are not exported
	Logger     *slog.Logger
}

// Requests are the requests of a router. Its methods are safe for concurrent use.
type Requests struct {
	config  Config
	deps    Deps
	metrics *metrics
	memory  *logMemory

	wait sync.WaitGroup // requests and their streams

	mu          sync.Mutex
	stopping    bool
	byID        map[requestName]*request // running requests, and finished ones that can be resumed
	kept        []*request               // finished requests that can be resumed, oldest first
	running     int
	number      uint64 // of the last request
	promptWaits promptWaits
	idle        chan struct{} // closed when stopping and nothing runs
	readersCut  chan struct{} // closed when Stop no longer waits for readers
}

// New returns an empty table of requests.
func New(config Config, deps Deps) (*Requests, error) {
	set := metricset.New(deps.Registerer)
	s := &Requests{
		config: config, deps: deps, metrics: newMetrics(set, deps.Spending), memory: newLogMemory(config, set),
		byID: make(map[requestName]*request), promptWaits: make(promptWaits), idle: make(chan struct{}), readersCut: make(chan struct{}),
	}
	if err := set.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// Caller describes the client of a request.
type Caller struct {
	// Secret proves that the caller made the request. If it is empty, a random one is made.
	Secret string
	// Route is the route of an HTTP request, and HTTPStatus the status that its client gets
	// for an error. Both are unset for gRPC.
	Route      string
	HTTPStatus func(error) int
	// Chat marks conversations, also where the prompt is in tokens already.
	Chat bool
	// Rendered is the prompt that Plan made of the request's conversation, in tokens; nil: it was
	// not planned before.
	Rendered []uint32
	// pool asks for the hidden states of the prompt.
	pool bool
	// version is the one that the request has to run in; zero: any that is served. sent, if set, is
	// called with it once, when the request is first sent to workers. It must not block.
	version routing.Version
	sent    func(routing.Version)
	// Now sends a token at once, unless that could block, and returns whether it did. If it
	// did not, send gets the token next. Other goroutines than send's call it, but never
	// while send runs or after Generate has returned. The event is valid until Now returns.
	// Nil: send gets every event.
	Now func(*inferencev1.GenerateEvent) bool
	// Queued is called when the request has asked for workers for the first time and was not refused at
	// once: it has its id, counts against the limits of its tenant, and waits or has workers. It must not
	// block, and may be called after Generate has returned. waits: the request has not asked yet, since it
	// waits for another one that computes its prompt; Queued is called again when it has. Nil: it is not called.
	Queued func(id string, waits bool)
	// Sharing describes a prompt that several requests have.
	Sharing Sharing
}

// Generate serves one request. It calls send with each event, from this goroutine, and
// returns nil after Finished, otherwise a gRPC status. A refused request sends nothing. The
// request's id is rpc.RequestID of ctx, with a suffix if another request has that, or a
// random one. An error of send, or the end of ctx, means that the client is gone. It does not change c.
func (s *Requests) Generate(ctx context.Context, c *Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	r, err := s.begin(ctx, c, q)
	if err != nil {
		return err
	}
	return follow(ctx, r.events, r.detach, 0, send, c.Now)
}

// begin plans, admits and starts a request. It is not part of Generate, where its frame would
// stay on the stack until the answer ends.
func (s *Requests) begin(ctx context.Context, c *Caller, q *inferencev1.GenerateRequest) (r *request, err error) {
	arrived := time.Now()
	id := cmp.Or(rpc.RequestID(ctx), rpc.NewID())
	spans := traceRequest(ctx, s.deps.Tracing, arrived, id, c, q)
	p, err := s.plan(ctx, arrived, q, c.Rendered)
	var by admitted
	if err == nil {
		p.Pool = c.pool
		by, err = s.admit(ctx, c.Sharing, q, p)
	}
	if err == nil {
		if r, err = s.start(p, by, id, c, spans); err == nil {
			return r, nil
		}
		if rpc.Reason(err) == api.ReasonRouterShutdown {
			by.charge.TakeBack()
		}
		by.charge.Done(0)
	}
	c.Sharing.computed(routing.Ref{})
	s.metrics.ended(time.Now(), err, joining.Finish{})
	spans.end(err)
	return nil, err
}

// Fits reports whether a request would fit into the model's context, as far as its other fields let
// that be known. No metrics count it. A router that stops, which refuses each, makes no tokens to find that out.
func (s *Requests) Fits(ctx context.Context, q *inferencev1.GenerateRequest) bool {
	if s.stops() {
		return true
	}
	_, err := s.deps.Models.Plan(ctx, time.Now(), q, nil)
	return rpc.Reason(err) != api.ReasonContextLengthExceeded
}

// Plan returns what Generate would serve, at most, and under which id. Metrics count the request only
// if it is refused.
func (s *Requests) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (p *preprocess.Plan, id string, err error) {
	if p, err = s.plan(ctx, time.Now(), q, nil); err != nil {
		s.metrics.ended(time.Now(), err, joining.Finish{})
		return nil, "", err
	}
	if caller := auth.FromContext(ctx); caller != nil {
		p.MaxTokens = int(caller.Limits.MostAnswerTokens(int64(len(p.Tokens)), int64(p.MaxTokens)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p, s.freeID(OwnerOf(ctx), rpc.RequestID(ctx)), nil
}

// stops reports whether no new requests are taken.
func (s *Requests) stops() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// plan makes a plan of a request. It first checks whether new ones are taken, and the limits of the
// tenant, since compiling forms and tokenizing take long.
func (s *Requests) plan(ctx context.Context, arrived time.Time, q *inferencev1.GenerateRequest, rendered []uint32) (*preprocess.Plan, error) {
	if s.stops() {
		return nil, clienterr.ShuttingDown()
	}
	if err := s.Check(ctx, quota.Need{}, ""); err != nil {
		return nil, err
	}
	p, err := s.deps.Models.Plan(ctx, arrived, q, rendered)
	switch rpc.Reason(err) {
	case api.ReasonClientGone, api.ReasonDeadline: // what is wrong with it the server counts
		s.Count(ctx)
	}
	return p, err
}

// Resume continues an answer for a caller that has the request's secret. It calls found if the
// request can be resumed, sends its events without the tokens before the offset, and returns
// as Generate does.
func (s *Requests) Resume(ctx context.Context, q *inferencev1.ResumeRequest, found func(), send func(*inferencev1.GenerateEvent) error) error {
	r, err := s.find(OwnerOf(ctx), q.GetRequestId(), q.GetSecret())
	if err != nil {
		return err
	}
	if err := s.resumedAgain(ctx, r); err != nil {
		r.detach(nil)
		return err
	}
	if n := r.events.generated(); q.GetOffset() > uint64(n) {
		r.detach(nil)
		return rpc.InvalidArgument("offset", fmt.Sprintf("%d is past the %d tokens so far", q.GetOffset(), n))
	}
	found()
	return follow(ctx, r.events, r.detach, q.GetOffset(), send, nil)
}

// readWithin and readRate are how long a reader has for what is left once an answer has ended, or once it has
// come, if that is later: so long, and longer by the bytes a second of what its log takes, which is an eighth
// of what is sent, about. Between two events it has the server's own time limit, which would let it take hours.
const (
	readWithin = 5 * time.Minute
	readRate   = 8 << 10
)

var errSendPanicked = errors.New("the router failed to send the answer: see its log")

// follow sends a request's events, without the tokens before from, to a reader that has been
// attached, and detaches it, also if send panics.
func follow(ctx context.Context, events *eventLog, detach func(error), from uint64, send func(*inferencev1.GenerateEvent) error, now func(*inferencev1.GenerateEvent) bool) (err error) {
	reader := newReader(now)
	defer context.AfterFunc(ctx, reader.rouse)()
	err = errSendPanicked // unless it returns
	defer func() {
		events.leave(reader)
		detach(err)
	}()
	var until time.Time // when it has to be read, once it has ended
	for {
		event, ended, err := events.read(reader)
		switch {
		case event != nil && reader.over && until.IsZero():
			until = time.Now().Add(readWithin + time.Duration(events.bytes.Load())*time.Second/readRate)
		case event != nil && reader.over && time.Now().After(until):
			return rpc.Errorf(codes.ResourceExhausted, api.ReasonNotRead, "the answer ended more than %s ago: read it as it arrives", readWithin)
		}
		switch {
		case event != nil:
			if event.GetTokens() != nil && event.GetOffset() < from || event.GetPromptLogprobs() != nil && from > 0 {
				continue
			}
			if send(event) != nil {
				return clienterr.Gone(ctx) // whatever the transport's error
			}
		case ended:
			return err
		case ctx.Err() != nil:
			return clienterr.Gone(ctx)
		default:
			<-reader.wake
		}
	}
}

// Running is the number of requests that run.
func (s *Requests) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Stop refuses new requests and waits for those that run. Requests that still run when ctx
// ends get UNAVAILABLE.
func (s *Requests) Stop(ctx context.Context) {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		if s.running == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.mu.Lock()
		for _, r := range s.byID {
			r.abort(clienterr.ShuttingDown())
		}
		select {
		case <-s.readersCut:
		default:
			close(s.readersCut)
		}
		s.mu.Unlock()
	}
	s.wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.kept {
		r.forget()
	}
	s.kept = nil
	clear(s.byID)
}

// start begins a request.
func (s *Requests) start(p *preprocess.Plan, by admitted, id string, c *Caller, spans *requestTrace) (*request, error) {
	waits, most := s.waitsForPrompt(c.Sharing, p), 0
	if waits {
		most = s.deps.Dispatcher.TenantLimit()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, clienterr.ShuttingDown()
	}
	if waits {
		if err := s.promptWaits.enter(p.Envelope.GetTenant(), most); err != nil {
			return nil, err
		}
	}
	if s.config.CacheByTenant || by.owner != "" {
		p.Envelope.CacheSalt = tenantSalt(p.Envelope.GetTenant(), p.Envelope.GetCacheSalt())
	}
	// Retries repeat an id, and other clients may have chosen the same. Each request gets
	// its own id, which Accepted tells the caller.
	id = s.freeID(by.owner, id)
	p.Envelope.RequestId = id
	s.number++
	r := newRequest(s, p, by, id, c, spans, s.number)
	r.waitsForPrompt = waits
	r.attach()
	s.byID[r.name()] = r
	s.running++
	spans.planned(id, p)
	context.AfterFunc(r.ctx, r.expired)
	s.wait.Go(r.begin)
	return r, nil
}

// tenantSalt is a salt that no request of another tenant can have. So the time of a prompt
// does not depend on the prompts of other tenants.
func tenantSalt(tenant, salt string) string {
	return fmt.Sprintf("%d:%s:%s", len(tenant), tenant, salt)
}
