package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/openai"
)

// Service is a router. Its methods are safe for concurrent use.
type Service struct {
	config     Config
	deps       Deps
	log        *slog.Logger
	models     map[string]Model
	sampling   map[string]*inferencev1.Sampling // by model: the defaults
	metrics    *metrics
	dispatcher *dispatcher
	pool       *pool
	records    *records
	http       *openai.Handler

	wait sync.WaitGroup // requests and their streams

	mu       sync.Mutex
	stopping bool
	requests map[string]*request // running, and finished ones that can be resumed
	kept     []keptRequest       // the finished ones, oldest first
	running  int
	number   uint64        // of the last request
	idle     chan struct{} // closed when stopping and nothing runs
	leaving  chan struct{} // closed by Stop
}

// keptRequest is a finished request that can be resumed for a while.
type keptRequest struct {
	request *request
	until   time.Time
}

// New checks the configuration and returns a router that knows no workers until
// Run.
func New(config Config, deps Deps) (*Service, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("router configuration: %w", err)
	}
	switch {
	case len(deps.Models) == 0:
		return nil, errors.New("router: no model is given")
	case deps.Members == nil:
		return nil, errors.New("router: no membership is given")
	case deps.Dial == nil:
		return nil, errors.New("router: no way to connect to workers is given")
	}
	if deps.Rand == nil {
		deps.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		config:   config,
		deps:     deps,
		log:      deps.Logger.With(slog.String("router", deps.ID)),
		models:   make(map[string]Model),
		sampling: make(map[string]*inferencev1.Sampling),
		records:  newRecords(),
		requests: make(map[string]*request),
		idle:     make(chan struct{}),
		leaving:  make(chan struct{}),
	}
	renders := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, m := range deps.Models {
		if _, ok := s.models[m.Spec.Name]; ok {
			return nil, fmt.Errorf("router: two models are called %q; give one of them another name", m.Spec.Name)
		}
		for _, alias := range m.Aliases {
			if err := CheckAlias(alias); err != nil {
				return nil, fmt.Errorf("router: model %s: %w", m.Spec.Name, err)
			}
		}
		if m.Chat != nil {
			m.Chat = boundedChat{m.Chat, renders}
		}
		s.models[m.Spec.Name] = m
		defaults, err := samplingDefaults(config.GenerationConfig, m.Spec)
		if err != nil {
			return nil, fmt.Errorf("router: generation_config.json of model %q: %w; correct it, or do without it by --generation-config=%s", m.Spec.Name, err, GenerationConfigNone)
		}
		s.sampling[m.Spec.Name] = defaults
	}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, config); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	if s.http, err = s.newHTTP(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	s.dispatcher = newDispatcher(fleet.New(config.fleet(), deps.Rand), s.metrics, s.log)
	if err := registerBacklog(deps.Registerer, s.dispatcher.queued); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	s.pool = newPool(deps.Dial, config.ConnectTimeout, s.dispatcher.handle, s.log)
	s.dispatcher.pool = s.pool
	return s, nil
}

// Register adds Inference and Control to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	inferencev1.RegisterInferenceServer(registrar, &inferenceServer{service: s})
	controlv1.RegisterControlServer(registrar, &controlServer{service: s})
}

// Run follows membership, policy and signals until ctx ends. Requests that still
// run then are ended, so that Stop should come first. It is called once.
func (s *Service) Run(ctx context.Context) error {
	if s.deps.Signals != nil {
		unsubscribe, err := s.deps.Signals.Subscribe(signals.Handlers{
			Load: func(report *controlv1.LoadReport) { s.dispatcher.handle(fleet.LoadReported{Report: report}) },
			Kv:   func(event *controlv1.KvEvent) { s.dispatcher.handle(fleet.BlocksChanged{Event: event}) },
		})
		if err != nil {
			return fmt.Errorf("router: subscribe to signals: %w", err)
		}
		defer unsubscribe()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make(chan error, 2)
	var wait sync.WaitGroup
	watch := func(what string, follow func() error) {
		wait.Go(func() {
			if err := follow(); err != nil && ctx.Err() == nil {
				failures <- fmt.Errorf("router: watch %s: %w", what, err)
				cancel()
			}
		})
	}
	watch("workers", func() error {
		return s.deps.Members.Watch(ctx, func(v membership.View) {
			s.dispatcher.handle(fleet.ViewChanged{Workers: v.Workers, Live: v.Live})
		})
	})
	watch("policy", func() error {
		return s.deps.Members.WatchPolicy(ctx, func(policy *controlv1.Policy) {
			s.dispatcher.handle(fleet.PolicyChanged{Policy: s.usable(policy)})
		})
	})
	wait.Go(func() { s.dispatcher.runTimers(ctx) })
	wait.Go(func() { s.runReports(ctx) })
	<-ctx.Done()
	wait.Wait()
	// What Stop has left, or everything if there was none: nothing drives it now.
	if err := s.Stop(ctx); err != nil {
		return err
	}
	s.pool.close()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

// usable is a policy from etcd without the fields that SetPolicy would have
// refused; nil stays nil.
func (s *Service) usable(policy *controlv1.Policy) *controlv1.Policy {
	err := checkPolicy(policy)
	if err == nil {
		return policy
	}
	s.log.Warn("policy in etcd is not valid: the field is ignored", slog.String("field", rpc.Field(err)), slog.Any("error", err))
	policy = proto.CloneOf(policy)
	policy.TenantMaxRequests = nil
	return policy
}

// checkPolicy says which field of a policy may not be as it is.
func checkPolicy(policy *controlv1.Policy) error {
	if policy != nil && policy.TenantMaxRequests != nil && policy.GetTenantMaxRequests() == 0 {
		return rpc.InvalidArgument("policy.tenant_max_requests", "0 lets nobody in; give 1 at least")
	}
	return nil
}

// Stop refuses new requests, ends what watches, and waits for the requests that
// run. What still runs when ctx ends is ended with UNAVAILABLE.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		close(s.leaving)
		if s.running == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.mu.Lock()
		for _, r := range s.requests {
			r.abort(shuttingDown())
		}
		s.mu.Unlock()
	}
	s.wait.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.requests)
	s.kept = nil
	return nil
}

func shuttingDown() error {
	return rpc.Error(codes.Unavailable, reasonShutdown, "this router shuts down; send the request to another one", time.Second)
}

// start begins a request.
func (s *Service) start(p *plan) (*request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, shuttingDown()
	}
	switch free := s.unused(p.id); {
	case free == p.id:
	case p.renames:
		p.id, p.envelope.RequestId = free, free
	default:
		return nil, rpc.InvalidArgument(rpc.RequestIDKey, "a request with this id is known already; leave it out or make it unique")
	}
	s.number++
	r := newRequest(s, p, s.number)
	r.attach()
	s.requests[p.id] = r
	s.running++
	s.wait.Go(func() {
		r.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running--; s.running == 0 && s.stopping {
			close(s.idle)
		}
	})
	return r, nil
}

// unused is an id if no request that is known has it; else one that begins like it.
// The caller holds mu.
func (s *Service) unused(id string) string {
	for free := id; ; {
		if s.requests[free] == nil {
			return free
		}
		suffix := "-" + newRequestID()[:8]
		free = id + suffix
		if !rpc.ValidRequestID(free) { // too long
			free = id[:len(id)-len(suffix)] + suffix
		}
	}
}

// ended keeps a finished request for as long as it can be resumed.
func (s *Service) ended(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.plan.resumable == 0 {
		delete(s.requests, r.plan.id)
		return
	}
	s.kept = append(s.kept, keptRequest{r, time.Now().Add(r.plan.resumable)})
	for len(s.kept) > s.config.KeptLogs {
		delete(s.requests, s.kept[0].request.plan.id)
		s.kept = s.kept[1:]
	}
}

// forget drops finished requests whose time is over.
func (s *Service) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.kept[:0]
	for _, k := range s.kept {
		if now.Before(k.until) {
			kept = append(kept, k)
		} else {
			delete(s.requests, k.request.plan.id)
		}
	}
	clear(s.kept[len(kept):])
	s.kept = kept
}

// find returns a request that can be resumed.
func (s *Service) find(id string) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests[id]
	if r == nil || r.plan.resumable == 0 {
		return nil
	}
	return r
}

// reportEvery is how often the queue is published when it does not change, and
// reportLeast the shortest time between two reports.
const (
	reportEvery = time.Second
	reportLeast = 100 * time.Millisecond
)

// runReports publishes the queue each second and when it changed, and forgets
// finished requests.
func (s *Service) runReports(ctx context.Context) {
	ticker := time.NewTicker(reportLeast)
	defer ticker.Stop()
	last := make(map[string]reported)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.forget(now)
			if s.deps.Queue != nil {
				s.report(now, last)
			}
		}
	}
}

// reported is what was said last of one model's queue.
type reported struct {
	at       time.Time
	requests uint32
	tokens   uint64
}

func (s *Service) report(now time.Time, last map[string]reported) {
	queued := s.dispatcher.queued()
	for name := range s.models {
		next := reported{at: now}
		for _, q := range queued[name] {
			next.requests += q.GetRequests()
			next.tokens += q.GetTokens()
		}
		before := last[name]
		if now.Sub(before.at) < reportEvery && before.requests == next.requests && before.tokens == next.tokens {
			continue
		}
		last[name] = next
		s.deps.Queue.Queue(&controlv1.QueueReport{Model: name, Queues: queued[name]})
	}
}
