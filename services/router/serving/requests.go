// Package serving drives the life of each request: it asks for workers, joins their two token
// streams into one, turns tokens back into text, and keeps what clients have not read yet, or
// may come back for. The life itself is the state machine of pkg/joining.
//
// The router imports it. Each request owns a goroutine, and that one owns one for each worker
// stream, which gives the request what the worker says and sends a client its tokens; Stop ends
// them and waits.
//
// Lock order: request.loop, Requests.mu, request.mu, then that of package routingdriver;
// eventLog.mu after request.mu. account.mu, eventLog.mu and those of package records are
// leaves, but that a log's end takes account.mu, and that Caller.Now, which must not block, is
// called under eventLog.mu.
package serving

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
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
	Silence routing.Silence // of a worker in a request, at most
	// KeptLogs is the most finished requests that can still be resumed, and KeptMemory
	// about what all of them may take: the oldest are forgotten first.
	KeptLogs   int
	KeptMemory bytesize.Size
	// UnreadMemory is what answers may take that clients have not read yet, and
	// UnreadRequest what one may have of it.
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
	Quota      *quota.Limiter // what tenants use, where callers are asked who they are
	Log        *eventlog.Log  // nil: nothing is recorded
	Tracing    Tracing
	Registerer prometheus.Registerer // nil: metrics are shown to nobody
	Logger     *slog.Logger
}

// Requests are the requests of a router. Its methods are safe for concurrent use.
type Requests struct {
	config  Config
	deps    Deps
	metrics *metrics
	account *account

	wait sync.WaitGroup // requests and their streams

	mu       sync.Mutex
	stopping bool
	byID     map[named]*request // running, and finished ones that can be resumed
	kept     []*request         // the finished ones, oldest first
	running  int
	number   uint64        // of the last request
	idle     chan struct{} // closed when stopping and nothing runs
	cut      chan struct{} // closed when it waits for nobody any more
}

// New returns an empty table of requests.
func New(config Config, deps Deps) (*Requests, error) {
	set := metricset.New(deps.Registerer)
	s := &Requests{
		config: config, deps: deps, metrics: newMetrics(set, deps.Spending), account: newAccount(config, set),
		byID: make(map[named]*request), idle: make(chan struct{}), cut: make(chan struct{}),
	}
	if err := set.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// Caller is who asks for an answer.
type Caller struct {
	// Secret proves that the caller made the request; "": one is drawn.
	Secret string
	// Route is that of the HTTP request, and HTTPStatus what its caller is told of an
	// error; "" and nil: it came over gRPC.
	Route      string
	HTTPStatus func(error) int
	// Chat: it asks for one, though the prompt may be in tokens already.
	Chat bool
	// pool: it wants the hidden states of the prompt.
	pool bool
	// Now, if it is set, sends a token at once unless that could block, and says whether it
	// did: if not, the token is what send gets next. It is called from other goroutines than send is, but never while that runs, nor
	// after Generate has returned. The event is valid until it returns.
	Now func(*inferencev1.GenerateEvent) bool
	// Sharing is of a prompt that several requests have.
	Sharing Sharing
}

// Generate serves one request: it calls send with each event, from this goroutine, and
// returns nil after Finished, otherwise a gRPC status. Nothing is sent of a request that is
// refused. The request's id is rpc.RequestID of ctx, one made of it if a request has that,
// or drawn. An error of send, or the end of ctx, is its client gone.
func (s *Requests) Generate(ctx context.Context, c Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	r, err := s.begin(ctx, c, q)
	if err != nil {
		return err
	}
	return follow(ctx, r, 0, send, c.Now)
}

// begin begins one. It is apart since what it has on the stack would stay there until the end.
func (s *Requests) begin(ctx context.Context, c Caller, q *inferencev1.GenerateRequest) (r *request, err error) {
	arrived := time.Now()
	id := cmp.Or(rpc.RequestID(ctx), rpc.NewID())
	spans := traceRequest(ctx, s.deps.Tracing, arrived, id, c, q)
	p, err := s.plan(ctx, arrived, q)
	var by admitted
	if err == nil {
		p.Pool = c.pool
		by, err = s.admit(ctx, c.Sharing, q, p)
	}
	if err == nil {
		if r, err = s.start(p, by, id, &c, spans); err == nil {
			return r, nil
		}
		by.charge.Done(0)
	}
	c.Sharing.computed(routing.Ref{})
	s.metrics.ended(time.Now(), err, joining.Finish{})
	spans.end(err)
	return nil, err
}

// Plan says what generate would serve, and under which id. It counts a request that would
// be refused, and no other.
func (s *Requests) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (p *preprocess.Plan, id string, err error) {
	if p, err = s.plan(ctx, time.Now(), q); err != nil {
		s.metrics.ended(time.Now(), err, joining.Finish{})
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return p, s.unused(ownerOf(ctx), rpc.RequestID(ctx)), nil
}

// plan makes a plan of a request, unless its tenant is over a limit: to compile forms and to make
// tokens takes long.
func (s *Requests) plan(ctx context.Context, arrived time.Time, q *inferencev1.GenerateRequest) (*preprocess.Plan, error) {
	if err := s.Over(ctx, 1, ""); err != nil {
		return nil, err
	}
	return s.deps.Models.Plan(ctx, arrived, q)
}

// Resume calls found if it has a request that can be resumed, and sends its events, but for the
// tokens before an offset, to who has its secret. It returns as generate does.
func (s *Requests) Resume(ctx context.Context, q *inferencev1.ResumeRequest, found func(), send func(*inferencev1.GenerateEvent) error) error {
	r, err := s.find(ownerOf(ctx), q.GetRequestId(), q.GetSecret())
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
	return follow(ctx, r, q.GetOffset(), send, nil)
}

// follow sends a request's events to a reader that has been attached, all but
// the tokens before from.
func follow(ctx context.Context, r *request, from uint64, send func(*inferencev1.GenerateEvent) error, now func(*inferencev1.GenerateEvent) bool) error {
	reader := newReader(now)
	defer context.AfterFunc(ctx, reader.rouse)()
	gone := func() error {
		// Whatever the transport says, it is the client that is gone.
		err := clienterr.Gone(ctx)
		r.events.leave(reader)
		r.detach(err)
		return err
	}
	for {
		event, ended, err := r.events.read(reader)
		switch {
		case event != nil:
			if event.GetTokens() != nil && event.GetOffset() < from || event.GetPromptLogprobs() != nil && from > 0 {
				continue
			}
			if send(event) != nil {
				return gone()
			}
		case ended:
			r.detach(nil)
			return err
		case ctx.Err() != nil:
			return gone()
		default:
			<-reader.wake
		}
	}
}

// Running is how many requests run.
func (s *Requests) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Stop refuses new requests and waits for those that run. What still runs when ctx ends is
// ended with UNAVAILABLE.
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
		case <-s.cut:
		default:
			close(s.cut)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, clienterr.ShuttingDown()
	}
	if s.config.CacheByTenant || by.owner != "" {
		p.Envelope.CacheSalt = tenantSalt(p.Envelope.GetTenant(), p.Envelope.GetCacheSalt())
	}
	// Proxies and clients send an id again with what they try again, and others may
	// have thought of the same: each request has its own, which its caller is told.
	id = s.unused(by.owner, id)
	p.Envelope.RequestId = id
	s.number++
	r := newRequest(s, p, by, id, c, spans, s.number)
	r.attach()
	s.byID[r.name()] = r
	s.running++
	s.wait.Go(func() {
		r.run()
		select {
		case <-r.read:
		case <-s.cut:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running--; s.running == 0 && s.stopping {
			close(s.idle)
		}
	})
	return r, nil
}

// tenantSalt is a salt that no other tenant's request can have, whatever salt it asks for: a
// prompt of one tenant then takes as long as if no other tenant had sent its like.
func tenantSalt(tenant, salt string) string {
	return fmt.Sprintf("%d:%s:%s", len(tenant), tenant, salt)
}

// named is what a request is known by: two owners may have requests of one id.
type named struct{ owner, id string }

func (r *request) name() named { return named{r.owner, r.id} }

// unused is an id if no request of the owner that is known, or whose record is kept, has it;
// else one that begins like it. The caller holds mu.
func (s *Requests) unused(owner, id string) string {
	for free := id; ; {
		if s.byID[named{owner, free}] == nil && !s.deps.Records.Has(owner, free) {
			return free
		}
		suffix := "-" + rpc.NewID()[:8]
		free = id + suffix
		if !rpc.ValidRequestID(free) { // too long
			free = id[:len(id)-len(suffix)] + suffix
		}
	}
}

// keep keeps a finished request for as long as it can be resumed.
func (s *Requests) keep(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.plan.Resumable == 0 {
		delete(s.byID, r.name())
		return
	}
	r.until = time.Now().Add(r.plan.Resumable)
	s.kept = append(s.kept, r)
	r.events.keep(true)
	for len(s.kept) > s.config.KeptLogs || len(s.kept) > 0 && s.account.kept.Load() > int64(s.config.KeptMemory) {
		s.metrics.forgotten.Inc()
		s.drop(s.kept[0])
		s.kept = slices.Delete(s.kept, 0, 1)
	}
}

// Forget forgets finished requests whose time is over.
func (s *Requests) Forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(r *request) bool {
		over := !now.Before(r.until)
		if over {
			s.drop(r)
		}
		return over
	})
}

// drop forgets a finished request; mu is held.
func (s *Requests) drop(r *request) {
	delete(s.byID, r.name())
	r.forget()
}

// find joins an owner's request that can be resumed by who has its secret; its reader has to
// detach from it. The error is a status.
func (s *Requests) find(owner, id, secret string) (*request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, hash := s.byID[named{owner, id}], records.SecretHash{}
	if r != nil && r.plan.Resumable > 0 {
		hash = r.hash
	}
	switch {
	case !hash.Proves(secret):
		return nil, clienterr.NotHere(id, 0, 0)
	case !r.attach():
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonTooManyReaders, fmt.Sprintf("%d clients are already reading this request; retry when one has ended", maxReaders), time.Second)
	}
	return r, nil
}
