package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/stock"
)

// Deps are what a store is given.
type Deps struct {
	Identity worker.Identity
	// KVAddresses are where the server listens that RegisterKV adds to, best first:
	// what tickets name. Empty: Register adds the receiver too, and tickets name
	// Identity's.
	KVAddresses []string
	// Dial connects to a receiver of KV, KVConnections times for each; 0: once.
	Dial          func(address string) (*grpc.ClientConn, error)
	KVConnections int
	// KVMaxStreams bounds the streams of KV that is received. 0:
	// kvtransfer.DefaultMaxStreams.
	KVMaxStreams int
	Signals      worker.Signals
	Logger       *slog.Logger
	Registerer   prometheus.Registerer
	// Tracer makes the spans of sampled requests. Nil: none.
	Tracer trace.Tracer
}

// Service is one block store.
type Service struct {
	cfg       Config
	deps      Deps
	addresses []string
	metrics   *metrics
	leaving   *leaving

	mu        sync.Mutex
	running   bool                       // Run has begun
	closed    bool                       // Run ends, or has ended
	draining  bool                       // nothing new is taken
	cut       bool                       // what is left of a drain is ended
	shelf     *shelf                     // nil: the store holds no layout
	moving    chan struct{}              // not nil: the shelf is being replaced; closed then
	lastEvent uint64                     // of the KV events
	changed   chan struct{}              // closed on the next change
	puts      map[stock.ArrivalID]uint64 // the transfer of each; 0: not known yet
	fetches   map[stock.ReadingID]context.CancelCauseFunc

	tooSmallNext time.Time // not before it is logged again that blocks do not fit
}

// New builds the store. Nothing runs before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, addresses: deps.KVAddresses,
		changed: make(chan struct{}),
		puts:    make(map[stock.ArrivalID]uint64),
		fetches: make(map[stock.ReadingID]context.CancelCauseFunc),
	}
	if len(s.addresses) == 0 {
		s.addresses = deps.Identity.Addresses
	}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, deps.Identity.ID, s); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.leaving = &leaving{service: s, drains: make(chan struct{})}
	return s, nil
}

// Register adds the store's services to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	workerv1.RegisterWorkerServer(registrar, &workerServer{service: s})
	kvtransferv1.RegisterBlockStoreServer(registrar, &server{service: s})
	if len(s.deps.KVAddresses) == 0 {
		s.RegisterKV(registrar)
	}
}

// RegisterKV adds the receiver of KV to the gRPC server that listens on
// Deps.KVAddresses.
func (s *Service) RegisterKV(registrar grpc.ServiceRegistrar) {
	registrar.RegisterService(s.transferDesc(), transferServer{})
}

// KVMessageBytes is the largest message that the server of RegisterKV has to take.
func (s *Service) KVMessageBytes() int { return maxMessageBytes }

// Join registers the store, unless it has left already. Its gRPC servers must be
// serving. register must not block nor call the store.
func (s *Service) Join(register func(*controlv1.WorkerRecord) worker.Registration) {
	s.leaving.join(register)
}

// Drain leaves and waits until nothing is under way. What is left when ctx ends is
// cancelled. Then the record is removed, for which cleanup is the limit; if etcd
// is away it goes with its lease.
func (s *Service) Drain(ctx context.Context, cleanup time.Duration) { s.leaving.drain(ctx, cleanup) }

// Run keeps blocks until ctx ends. It returns when all that it started has
// stopped; what was held is gone then.
func (s *Service) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	var beside sync.WaitGroup
	beside.Go(func() { s.report(ctx) })
	beside.Go(func() { s.leaving.departWhenIdle(ctx) })
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
	h := s.shelf
	for _, cancel := range s.fetches {
		cancel(errCut)
	}
	s.mu.Unlock()
	if h != nil {
		h.clear(s.deps.Logger)
	}
}

// noteChange tells whoever waits, and the routers what is stored and removed.
// s.mu is held.
func (s *Service) noteChange() {
	if s.shelf != nil {
		s.publish(s.shelf.stock.Changes())
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// publish sends what changed to the routers. s.mu is held.
func (s *Service) publish(stored, removed []kvcache.Hash) {
	if len(stored)+len(removed) > 0 {
		s.lastEvent = s.deps.Signals.Kv(trace.SpanContext{}, hashValues(stored), hashValues(removed))
	}
}

func hashValues(hashes []kvcache.Hash) []uint64 {
	values := make([]uint64, len(hashes))
	for i, h := range hashes {
		values[i] = uint64(h)
	}
	return values
}

// stats is the stock's; without a shelf it is zero.
func (s *Service) stats() (stats stock.Stats, pageBytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shelf == nil {
		return stock.Stats{}, 0
	}
	return s.shelf.stock.Stats(), s.shelf.layout.PageBytes()
}
