package integration_test

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// rigMembers is membership without etcd.
type rigMembers struct {
	mu      sync.Mutex
	workers []*controlv1.WorkerRecord
	changed chan struct{}
}

func (m *rigMembers) set(workers []*controlv1.WorkerRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers = slices.Clone(workers)
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *rigMembers) Watch(ctx context.Context, notify func(membership.View)) error {
	for {
		m.mu.Lock()
		view, changed := membership.View{Workers: m.workers, Live: true}, m.changed
		m.mu.Unlock()
		notify(view)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *rigMembers) WatchPolicy(ctx context.Context, notify func(*controlv1.Policy, int64)) error {
	notify(nil, 0)
	<-ctx.Done()
	return ctx.Err()
}

func (m *rigMembers) SetPolicy(context.Context, *controlv1.Policy, int64) (int64, error) {
	return 0, nil
}

// rigSignals bring load reports to routers without NATS. Prefix caches stay unknown.
type rigSignals struct {
	mu      sync.Mutex
	last    int
	routers map[int]func(*controlv1.LoadReport)
	waiting map[string]uint32 // requests in the routers' queues, by model
}

// Subscribe is of router.Signals.
func (s *rigSignals) Subscribe(handlers signals.Handlers) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.routers == nil {
		s.routers, s.waiting = map[int]func(*controlv1.LoadReport){}, map[string]uint32{}
	}
	s.last++
	id := s.last
	s.routers[id] = handlers.Load
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.routers, id)
	}, nil
}

// Queue is of router.Publisher.
func (s *rigSignals) Queue(report *controlv1.QueueReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[report.GetModel()] = 0
	for _, q := range report.GetQueues() {
		s.waiting[report.GetModel()] += q.GetRequests()
	}
}

// Router is of router.Publisher.
func (s *rigSignals) Router(*controlv1.RouterReport) {}

// Tenants is of router.Publisher.
func (s *rigSignals) Tenants(*controlv1.TenantReport) {}

// queued is how many requests wait in the router.
func (s *rigSignals) queued() (n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, waiting := range s.waiting {
		n += waiting
	}
	return n
}

// of is what a worker publishes with.
func (s *rigSignals) of(identity membership.Identity) *rigPublisher {
	return &rigPublisher{signals: s, origin: &controlv1.Origin{Id: identity.ID, Epoch: identity.Epoch}}
}

type rigPublisher struct {
	signals *rigSignals
	origin  *controlv1.Origin
}

// Load is of worker.Signals.
func (p *rigPublisher) Load(report *controlv1.LoadReport) {
	p.signals.mu.Lock()
	defer p.signals.mu.Unlock()
	p.origin.Sequence++
	for _, router := range p.signals.routers {
		said := proto.CloneOf(report)
		said.Origin = proto.CloneOf(p.origin)
		router(said)
	}
}

// Kv is of worker.Signals.
func (p *rigPublisher) Kv(trace.SpanContext, []uint64, []uint64) (sequence uint64) { return 0 }
