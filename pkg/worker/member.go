package worker

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

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Signals is where a worker's signals go; *signals.Publisher is one. No method
// blocks.
type Signals interface {
	LoadPublisher
	// Kv publishes a change of the prefix cache, which cause made if it is valid,
	// and returns its number.
	Kv(cause trace.SpanContext, stored, removed []uint64) (sequence uint64)
}

// Registration is a worker's record in the membership; *membership.Registration
// is one.
type Registration interface {
	Update(change func(*controlv1.WorkerRecord))
	Close(ctx context.Context) error
}

// MemberConfig is what a Member is made of.
type MemberConfig struct {
	Identity    Identity
	Engine      engine.Engine
	ChunkTokens int
	MaxWaiting  int
	// StepBudget and OutputShare are scheduler.Config's.
	StepBudget  time.Duration
	OutputShare float64
	// LayerDone is Config.LayerDone.
	LayerDone func(run scheduler.RunStep, layer int)
	// LayersDone is Config.LayersDone.
	LayersDone func(run scheduler.RunStep)
	// Save and StopSave are Config's.
	Save     func(scheduler.Save)
	StopSave func(scheduler.SaveID)
	// Transfers counts KV transfers that have not ended.
	Transfers  func() int
	Signals    Signals
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Member is one worker as part of the mesh: its driver, its signals, its record
// and its leaving.
type Member struct {
	cfg    MemberConfig
	driver *Driver

	mu           sync.Mutex
	registration Registration
	leaving      bool
	left         bool // the record is gone, or about to be
	cut          *time.Timer
	drains       chan struct{} // closed with leaving
	departed     sync.Once
}

// NewMember builds the driver and all around it. Nothing runs before Run.
func NewMember(cfg MemberConfig) (*Member, error) {
	metrics, err := NewMetrics(cfg.Registerer, cfg.Identity.ID)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if err := metrics.countReach(cfg.Registerer, cfg.Identity.ID, cfg.Engine); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	driver, err := NewDriver(Config{
		Engine: cfg.Engine, ChunkTokens: cfg.ChunkTokens, MaxWaiting: cfg.MaxWaiting, StepBudget: cfg.StepBudget, OutputShare: cfg.OutputShare, LayerDone: cfg.LayerDone, LayersDone: cfg.LayersDone,
		BlocksChanged: func(cause trace.SpanContext, stored, removed []kvcache.Hash) uint64 {
			return cfg.Signals.Kv(cause, hashValues(stored), hashValues(removed))
		},
		Save: cfg.Save, StopSave: cfg.StopSave,
		Logger: cfg.Logger, Metrics: metrics,
	})
	if err != nil {
		return nil, err
	}
	if err := registerPool(cfg.Registerer, cfg.Identity.ID, driver.PoolStats); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if err := registerBacklog(cfg.Registerer, cfg.Identity, driver.Load); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return &Member{cfg: cfg, driver: driver, drains: make(chan struct{})}, nil
}

func hashValues(hashes []kvcache.Hash) []uint64 {
	values := make([]uint64, len(hashes))
	for i, h := range hashes {
		values[i] = uint64(h)
	}
	return values
}

// Driver is the worker's driver.
func (m *Member) Driver() *Driver { return m.driver }

// Register adds the Worker service to a gRPC server.
func (m *Member) Register(registrar grpc.ServiceRegistrar) {
	NewServer(m.driver, m.cfg.Identity.Epoch, m.Leave, m.cfg.Transfers).Register(registrar)
}

// Run computes and reports until ctx ends, and removes the worker's record once
// it has left and is idle. It returns when all of that has stopped. When the engine's
// device is lost, the sequences there are fail, which lets routers go on with them
// elsewhere, nothing new is taken, and Run returns engine.ErrDeviceLost.
func (m *Member) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	lost := false
	beside.Go(func() { lost = m.leaveWhenLost(ctx, stop) })
	beside.Go(func() { _ = m.driver.Report(ctx, m.cfg.Identity.Role, m.cfg.Signals) }) // ends with ctx only
	beside.Go(func() { m.departWhenIdle(ctx) })
	err := m.driver.Run(ctx)
	stop()
	beside.Wait()
	if lost {
		return engine.ErrDeviceLost
	}
	return err
}

// leaveWhenLost says whether the engine's device was lost. It has left then, and stops Run
// once nothing is left, or after as long as leaving may take.
func (m *Member) leaveWhenLost(ctx context.Context, stop func()) bool {
	var noticed <-chan struct{} // by what is no step
	if losing, is := m.cfg.Engine.(engine.Losing); is {
		noticed = losing.Lost()
	}
	select {
	case <-m.driver.Lost():
	case <-noticed:
	case <-ctx.Done():
		return false
	}
	m.Leave(0)
	ctx, cancel := context.WithTimeout(ctx, departDelay+departTimeout)
	defer cancel()
	_ = m.driver.Idle(ctx)
	stop()
	return true
}

const (
	// departDelay is for how long at least the record says that the worker drains
	// before it is removed: long enough that routers see it, who keep a worker that
	// etcd merely lost.
	departDelay = time.Second
	// departTimeout bounds how long removing the record may take.
	departTimeout = 2 * time.Second
)

func (m *Member) departWhenIdle(ctx context.Context) {
	select {
	case <-m.drains:
	case <-ctx.Done():
		return
	}
	seen := time.NewTimer(departDelay)
	defer seen.Stop()
	select {
	case <-seen.C:
	case <-ctx.Done():
		return
	}
	if m.Drained(ctx) == nil {
		m.depart(ctx, departTimeout)
	}
}

// Drained waits until the worker takes nothing new and nothing is left of what it ran.
// Its error is that of ctx.
func (m *Member) Drained(ctx context.Context) error {
	select {
	case <-m.drains:
		return m.driver.Idle(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Join registers the worker, unless it has left already. Its gRPC server must be
// serving. register must not block nor call the member.
func (m *Member) Join(register func(*controlv1.WorkerRecord) Registration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left {
		return // nobody would remove the record
	}
	m.registration = register(Record(m.cfg.Identity, m.cfg.Engine, m.cfg.MaxWaiting))
	if m.leaving {
		m.registration.Update(markDraining)
	}
}

func markDraining(record *controlv1.WorkerRecord) {
	record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
}

// Leave takes nothing new from now on and says so to the mesh. What still runs
// after grace is ended; 0 lets it finish. When nothing is left, Run removes the
// worker's record; the process stays until it is stopped. It does not wait.
func (m *Member) Leave(grace time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.driver.Drain() // before Drained asks what is left
	if !m.leaving {
		m.leaving = true
		close(m.drains)
		m.cfg.Logger.Info("worker drains", "sequences", m.driver.Remaining())
		if m.registration != nil {
			m.registration.Update(markDraining)
		}
	}
	if grace > 0 {
		if m.cut != nil {
			m.cut.Stop()
		}
		m.cut = time.AfterFunc(grace, m.driver.CancelAll)
	}
}

// Drain leaves and waits until nothing is left. What is left when ctx ends is
// cancelled. Then the record is removed, for which cleanup is the limit; if etcd
// is away it goes with its lease.
func (m *Member) Drain(ctx context.Context, cleanup time.Duration) {
	m.Leave(0)
	if err := m.driver.Idle(ctx); err != nil {
		m.cfg.Logger.Warn("drain ends before its sequences do", "error", err)
		m.driver.CancelAll()
	}
	m.depart(ctx, cleanup)
}

// depart removes the record, once; who comes second waits until it is done.
func (m *Member) depart(ctx context.Context, cleanup time.Duration) {
	m.departed.Do(func() {
		m.mu.Lock()
		registration := m.registration
		m.left = true
		if m.cut != nil {
			m.cut.Stop()
		}
		m.mu.Unlock()
		if registration == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if err := registration.Close(ctx); err != nil { // etcd is away: the lease ends it
			m.cfg.Logger.Warn("worker could not leave the membership", "error", err)
		}
	})
}
