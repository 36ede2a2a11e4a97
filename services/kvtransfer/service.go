package kvtransfer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// Deps are the parts that a store uses.
type Deps struct {
	// Identity has KVAddresses if the receiver has its own server (RegisterKV). Otherwise
	// Register adds the receiver too.
	Identity membership.Identity
	// Exchange is with the workers that put and fetch. Only registered ones may call.
	kvtransfer.Exchange
	Signals    workerdriver.Signals
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Tracer makes the spans of sampled requests. Nil: no spans.
	Tracer trace.Tracer
}

// Service is one block store.
type Service struct {
	*membership.Member
	cfg       Config
	deps      Deps
	metrics   *metrics
	described atomic.Pointer[cache] // the cache that the record describes; nil: none

	mu        sync.Mutex
	running   bool                        // Run has begun
	closed    bool                        // Run ends, or has ended
	draining  bool                        // new calls are refused
	cut       bool                        // a drain ends the calls that are left
	cache     *cache                      // nil: the store has adopted no layout
	moving    chan struct{}               // closed once the cache is replaced; nil: it is not being replaced
	lastEvent uint64                      // number of the last KV event
	changed   chan struct{}               // closed on the next change
	puts      map[blockstore.PutID]uint64 // their transfers; 0: not known yet
	fetches   map[blockstore.FetchID]context.CancelCauseFunc

	keptBefore, evictionsBefore uint64 // of earlier caches

	tooSmall logthrottle.Throttle // of log lines that say that blocks do not fit
}

// New builds the store. Nothing runs before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, tooSmall: logthrottle.Throttle{Every: tooSmallEvery},
		changed: make(chan struct{}),
		puts:    make(map[blockstore.PutID]uint64),
		fetches: make(map[blockstore.FetchID]context.CancelCauseFunc),
	}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, deps.Identity.ID, s); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.Member = s.newMember()
	return s, nil
}

// Register adds the store's services to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.Member.Register(registrar)
	kvtransferv1.RegisterBlockStoreServer(registrar, &server{service: s})
	if len(s.deps.Identity.KVAddresses) == 0 {
		s.RegisterKV(registrar)
	}
}

// RegisterKV adds the receiver of KV to the gRPC server that listens on
// the KVAddresses of Deps.Identity.
func (s *Service) RegisterKV(registrar grpc.ServiceRegistrar) {
	kvtransferv1.RegisterKVTransferServer(registrar, transferServer{service: s})
}

// KVMessageBytes is the largest message that the server of RegisterKV must accept.
func (s *Service) KVMessageBytes() int { return maxMessageBytes }

// Run keeps blocks until ctx ends. It returns when all goroutines that it started have ended;
// the blocks are gone then.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	var beside sync.WaitGroup
	beside.Go(func() { workerdriver.ReportLoad(ctx, s.deps.Signals.Load, blockstore.ReportApart, s.load) })
	beside.Go(func() { s.Member.Run(ctx) })
	beside.Go(func() { s.WhenDrained(ctx, s.endSessions) })
	<-ctx.Done()
	s.end()
	beside.Wait()
	return nil
}

// end clears the store away.
func (s *Service) end() {
	s.mu.Lock()
	s.closed = true
	for s.moving != nil {
		moved := s.moving
		s.mu.Unlock()
		<-moved
		s.mu.Lock()
	}
	c := s.cache
	for _, cancel := range s.fetches {
		cancel(errCut)
	}
	s.mu.Unlock()
	if c != nil {
		c.clear(s.deps.Logger)
	}
}

// noteChange wakes waiting callers and tells the routers which blocks were stored and removed.
// The caller holds s.mu.
func (s *Service) noteChange() {
	if s.cache != nil {
		s.publish(s.cache.store.Changes())
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// publish tells the routers which blocks were stored and removed. The caller holds s.mu.
func (s *Service) publish(stored, removed []kvcache.Hash) {
	if len(stored)+len(removed) > 0 {
		s.lastEvent = s.deps.Signals.Kv(trace.SpanContext{}, kvcache.HashValues(stored), kvcache.HashValues(removed))
	}
}

// stats is the store's, with the counts of earlier caches; without a cache only those.
func (s *Service) stats() (stats blockstore.Stats, pageBytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache != nil {
		stats, pageBytes = s.cache.store.Stats(), s.cache.layout.PageBytes()
	}
	stats.Kept += s.keptBefore
	stats.Pool.Evictions += s.evictionsBefore
	return stats, pageBytes
}
