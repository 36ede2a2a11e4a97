package workerdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Signals is where a worker's signals go; *signals.Publisher is one. No method
// blocks.
type Signals interface {
	// Load publishes a report of the load.
	Load(report *controlv1.LoadReport)
	// Kv publishes a change of the prefix cache, which cause made if it is valid,
	// and returns its number.
	Kv(cause trace.SpanContext, stored, removed []uint64) (sequence uint64)
}

// Deps are the parts that a worker of any role uses.
type Deps struct {
	// Identity has KVAddresses if the receiver of KV has a server of its own.
	Identity membership.Identity
	// Engine computes. The worker does not close it.
	Engine engine.Engine
	// Grammars holds outputs to a form. Nil: requests that ask for one are refused.
	Grammars   Grammars
	Signals    Signals
	Log        *eventlog.Log // records the core's events and actions; nil: nothing is recorded
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Tracer makes the spans of sampled requests. Nil: no spans.
	Tracer trace.Tracer
}

// MemberConfig is what a Member is made of.
type MemberConfig struct {
	Deps
	worker.Limits
	// MaxDrafts is Config.MaxDrafts.
	MaxDrafts int
	// Mirrors, LayerDone and LayersDone are Config's.
	Mirrors    func(run scheduler.RunStep) []engine.Mirror
	LayerDone  func(run scheduler.RunStep, layer int)
	LayersDone func(run scheduler.RunStep)
	// Save and StopSave are Config's.
	Save     func(scheduler.Save)
	StopSave func(scheduler.SaveID)
	// Transfers counts KV transfers that have not ended and are of no sequence. Nil: there
	// are none.
	Transfers func() int
}

// Member is one worker as part of the mesh: its driver, its signals and its membership.
type Member struct {
	*membership.Member
	cfg    MemberConfig
	driver *Driver
}

// NewMember builds the driver and all around it. Nothing runs before Run.
func NewMember(cfg MemberConfig) (*Member, error) {
	metrics, err := NewMetrics(cfg.Registerer, cfg.Identity.ID)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	driver, err := NewDriver(Config{
		Engine: cfg.Engine, Limits: cfg.Limits, MaxDrafts: cfg.MaxDrafts, Mirrors: cfg.Mirrors, LayerDone: cfg.LayerDone, LayersDone: cfg.LayersDone,
		BlocksChanged: func(cause trace.SpanContext, stored, removed []kvcache.Hash) uint64 {
			return cfg.Signals.Kv(cause, kvcache.HashValues(stored), kvcache.HashValues(removed))
		},
		Save: cfg.Save, StopSave: cfg.StopSave,
		Log: cfg.Log, Logger: cfg.Logger, Metrics: metrics,
	})
	if err != nil {
		return nil, err
	}
	if err := metrics.ofMember(cfg.Registerer, cfg.Identity, driver); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	m := &Member{cfg: cfg, driver: driver}
	m.Member = membership.NewMember(membership.MemberConfig{
		Identity: cfg.Identity,
		Describe: func(record *controlv1.WorkerRecord) { worker.Describe(record, cfg.Engine, cfg.Limits) },
		Refuse: func(refuse bool) {
			if refuse {
				driver.Drain()
			} else {
				driver.Undrain()
			}
		},
		Idle: driver.Idle, Cut: driver.CancelAll,
		Progress: m.progress,
		Blocks: func() ([]uint64, uint64) {
			hashes, lastEvent := driver.Snapshot()
			return kvcache.HashValues(hashes), lastEvent
		},
		Logger: cfg.Logger,
	})
	return m, nil
}

// progress is what is left of a drain, and a channel closed on the next change.
func (m *Member) progress() (*workerv1.DrainProgress, <-chan struct{}) {
	changed := m.driver.Changed()
	load, _ := m.driver.Load()
	transfers := m.driver.Transfers()
	if m.cfg.Transfers != nil {
		transfers += m.cfg.Transfers()
	}
	return &workerv1.DrainProgress{
		Sequences:  uint32(m.driver.Remaining()),
		Transfers:  uint32(transfers),
		BlocksHeld: uint32(load.BlocksTotal - load.BlocksFree),
	}, changed
}

// Driver is the worker's driver.
func (m *Member) Driver() *Driver { return m.driver }

// Run computes and reports until ctx ends, and removes the worker's record once
// it has left and is idle. It returns when all of that has stopped. When the engine's
// device is lost, its sequences fail, so that routers continue them elsewhere, nothing new
// is taken, and Run returns engine.ErrDeviceLost. When what the engine computes is not
// finite again and again, they may go on for three seconds, and Run returns
// worker.ErrNotFinite.
func (m *Member) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	var lost error
	beside.Go(func() { lost = m.leaveWhenLost(ctx, stop) })
	beside.Go(func() { m.driver.Report(ctx, m.cfg.Identity.Role, m.cfg.Signals.Load) })
	beside.Go(func() { m.Member.Run(ctx) })
	m.driver.Run(ctx)
	stop()
	beside.Wait()
	return lost
}

// lostTimeout is how long what runs may go on once the engine is lost.
const lostTimeout = 3 * time.Second

// leaveWhenLost says why the engine was lost, if it was. The member has left then, and Run is
// stopped once nothing is left, or after lostTimeout.
func (m *Member) leaveWhenLost(ctx context.Context, stop func()) error {
	var noticed <-chan struct{} // by what is no step
	if losing, is := engine.As[engine.LossNotifier](m.cfg.Engine); is {
		noticed = losing.Lost()
	}
	why := engine.ErrDeviceLost
	select {
	case <-m.driver.Lost():
		why = m.driver.lostBy
	case <-noticed:
	case <-ctx.Done():
		return nil
	}
	m.LeaveForGood()
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	if m.driver.Idle(ctx) != nil {
		m.driver.CancelAll() // so that routers continue what is left elsewhere
	}
	stop()
	return why
}
