package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/services/router/control"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/peers"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/records"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
	"github.com/tandem-serving/tandem/services/router/scalingdriver"
	"github.com/tandem-serving/tandem/services/router/serving"
	"github.com/tandem-serving/tandem/services/router/workers"
)

// Service is a router. Its methods are safe for concurrent use.
type Service struct {
	config     Config
	deps       Deps
	log        *slog.Logger
	models     *preprocess.Models
	requests   *serving.Requests
	dispatcher *routingdriver.Dispatcher
	records    *records.Ring
	http       *openai.Handler
	membership *workers.MembershipView
	peers      *peers.Peers
	sizes      *scalingdriver.Sizes
	quota      *quota.Limiter
	control    *control.Server

	leaving context.Context // ended by Stop
	leave   context.CancelFunc
}

// New checks the configuration and returns a router that knows no workers until
// Run.
func New(config Config, deps Deps) (*Service, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("router configuration: %w", err)
	}
	models, err := preprocess.NewModels(deps.Models, config.GenerationConfig, config.Serving.MaxRequestTime)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	switch {
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
		config:  config,
		deps:    deps,
		log:     deps.Logger,
		models:  models,
		records: records.New(),
		peers:   peers.New(deps.ID, deps.dialRouter()),
		quota:   quota.New(deps.ID, deps.Logger),
	}
	s.leaving, s.leave = context.WithCancel(context.Background())
	routes := config.routing(deps.ID, deps.Models)
	routes.HideTenants = deps.Auth != nil
	if s.dispatcher, err = routingdriver.New(routes, routingdriver.Deps{
		Dial: deps.Dial, ConnectTimeout: config.ConnectTimeout, Rand: deps.Rand, Log: deps.Log, Announce: deps.Announce, Publisher: deps.Publisher, Registerer: deps.Registerer, Logger: s.log,
	}); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	var names []string
	for _, m := range deps.Models {
		names = append(names, m.Spec.Name)
	}
	if s.sizes, err = scalingdriver.New(config.Scaling, deps.ID, names, s.dispatcher, deps.Registerer); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	if s.membership, err = workers.NewMembershipView(deps.Registerer); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	spending, err := latencybudget.NewSpending(config.Budget, deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	if s.requests, err = serving.New(config.requests(), serving.Deps{
		Models: models, Dispatcher: s.dispatcher, Records: s.records, Spending: spending, Quota: s.quota, Log: deps.Log, Tracing: deps.Tracing, Registerer: deps.Registerer, Logger: s.log,
	}); err != nil {
		return nil, fmt.Errorf("router metrics: %w", err)
	}
	if s.http, err = s.newHTTP(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	var still func(context.Context) error
	if deps.Auth != nil {
		still = func(ctx context.Context) error { return deps.Auth.Still(ctx, auth.Operate) }
	}
	s.control = control.New(control.Deps{
		Models: models, Dispatcher: s.dispatcher, Membership: s.membership, Sizes: s.sizes, Records: s.records, Spending: spending,
		Members: deps.Members, Dial: deps.Dial, Leaving: s.leaving, Logger: s.log, Still: still,
		Defaults: &controlv1.Policy{
			DisaggregateMinTokens: proto.Uint32(uint32(config.Routing.DisaggregateMinTokens)), TenantMaxRequests: proto.Uint32(uint32(config.Routing.TenantMaxRequests)),
			Routing: proto.String(config.Routing.Policy),
		},
	})
	return s, nil
}

// Sizes are the desired sizes of a model's pools; false before they are computed.
func (s *Service) Sizes(model string) (scaling.Sizes, bool) { return s.sizes.Of(model) }

// Running is the number of requests that run.
func (s *Service) Running() int { return s.requests.Running() }

// WatchWorkers calls notify, from this goroutine, now and at each change, with the router's view
// of its workers and the reason why they can serve no request (empty if they can). It ends when
// ctx ends, the router stops or notify fails; the error says which.
func (s *Service) WatchWorkers(ctx context.Context, notify func(workers []*controlv1.WorkerView, unserved string) error) error {
	return s.control.Watch(ctx, controlv1.Role_ROLE_UNSPECIFIED, func(workers []*controlv1.WorkerView) error {
		return notify(workers, s.dispatcher.Unserved())
	})
}

// Register adds the clients' services to a gRPC server: Inference and Requests.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	inferencev1.RegisterInferenceServer(registrar, &inferenceServer{service: s})
	controlv1.RegisterRequestsServer(registrar, &requestsServer{service: s})
}

// RegisterControl adds Control and Keys to a gRPC server. Clients must not reach that server,
// unless it checks credentials.
func (s *Service) RegisterControl(registrar grpc.ServiceRegistrar) {
	controlv1.RegisterControlServer(registrar, s.control)
	if s.deps.Keys != nil {
		controlv1.RegisterKeysServer(registrar, control.NewKeys(s.deps.Keys))
	}
}

// policyWait bounds the wait for the policy, at the start, before the router looks for workers.
const policyWait = time.Second

// Run follows membership, policy and signals until ctx ends. It then ends the requests that
// still run, so call Stop first. Call Run once.
func (s *Service) Run(ctx context.Context) error {
	if s.deps.Signals != nil {
		var tenants func(*controlv1.TenantReport)
		if s.deps.Auth != nil {
			tenants = s.quota.Heard
		}
		unsubscribe, err := s.deps.Signals.Subscribe(signals.Handlers{
			Tenants: tenants,
			Load:    func(report *controlv1.LoadReport) { s.dispatcher.Handle(routing.LoadReported{Report: report}) },
			Router: func(report *controlv1.RouterReport) {
				s.dispatcher.Handle(routing.RouterReported{Report: report})
			},
			Queue: func(report *controlv1.QueueReport) { s.sizes.Take(time.Now(), report) },
			Kv:    func(event *controlv1.KvEvent) { s.dispatcher.Handle(routing.BlocksChanged{Event: event}) },
		})
		if err != nil {
			return fmt.Errorf("router: subscribe to signals: %w", err)
		}
		defer unsubscribe()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failures := make(chan error, 3)
	var wait sync.WaitGroup
	watch := func(what string, follow func() error) {
		wait.Go(func() {
			if err := follow(); err != nil && ctx.Err() == nil {
				failures <- fmt.Errorf("router: watch %s: %w", what, err)
				cancel()
			}
		})
	}
	// The policy comes first, since it may name the version of a model to serve.
	known := make(chan struct{})
	policyKnown := sync.OnceFunc(func() { close(known) })
	watch("workers", func() error {
		timeout := time.NewTimer(policyWait)
		defer timeout.Stop()
		select {
		case <-known:
		case <-timeout.C:
		case <-ctx.Done():
		}
		return s.deps.Members.Watch(ctx, func(v membership.View) {
			s.membership.Take(v)
			s.peers.Take(v)
			s.takeRouters(v)
			s.sizes.TakeView(v)
			s.dispatcher.Handle(routing.ViewChanged{Workers: v.Workers, Live: v.Live})
		})
	})
	watch("policy", func() error {
		return s.deps.Members.WatchPolicy(ctx, func(policy *controlv1.Policy, revision int64) {
			s.dispatcher.SetPolicy(s.control.Usable(policy), revision)
			policyKnown()
		})
	})
	if s.deps.Auth != nil {
		if s.deps.Keys != nil {
			watch("keys", func() error { return s.deps.Keys.WatchKeys(ctx, s.deps.Auth.SetKeys) })
		}
		wait.Go(func() { s.deps.Auth.Run(ctx) })
		wait.Go(func() { s.runLimits(ctx) })
	}
	wait.Go(func() { s.dispatcher.RunTimers(ctx) })
	wait.Go(func() { s.runHousekeeping(ctx) })
	<-ctx.Done()
	wait.Wait()
	// Nothing drives requests any more: end those that Stop has left.
	_ = s.Stop(ctx) // never fails
	s.dispatcher.Close()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

// Stop refuses new requests, ends all watches, and waits for the requests that run. Requests
// that still run when ctx ends get UNAVAILABLE.
func (s *Service) Stop(ctx context.Context) error {
	s.leave()
	s.requests.Stop(ctx)
	return nil
}

// housekeepingEvery is the interval at which the router forgets finished requests, reports its
// queue, and checks whether to compute sizes.
const housekeepingEvery = 100 * time.Millisecond

func (s *Service) runHousekeeping(ctx context.Context) {
	ticker := time.NewTicker(housekeepingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.requests.Forget(now)
			s.sizes.Evaluate(now)
			s.dispatcher.Report(now, s.sizes.Report)
		}
	}
}
