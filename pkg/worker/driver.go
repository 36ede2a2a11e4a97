package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Config of a Driver.
type Config struct {
	// Engine computes the steps. The driver does not close it.
	Engine engine.Engine
	// ChunkTokens is the most prompt tokens in one step; a multiple of the
	// engine's block size.
	ChunkTokens int
	// MaxWaiting is the most sequences that may wait.
	MaxWaiting int
	// StepBudget and OutputShare are scheduler.Config's.
	StepBudget  time.Duration
	OutputShare float64
	// LayerDone, if set, is called after each layer of each step, on the engine's
	// own path: it must not block. run stays as it is until the step is done.
	LayerDone func(run scheduler.RunStep, layer int)
	// LayersDone, if set, is called once in each step, when all its layers are
	// computed and no logits yet, as LayerDone is.
	LayersDone func(run scheduler.RunStep)
	// BlocksChanged, if set, is called with each change of the prefix cache, in
	// order, under the driver's lock: it must not block nor call the driver, nor keep
	// the hashes. cause is the span of a traced sequence that made it, if there is one.
	// It returns the number of the event, which Snapshot hands out.
	BlocksChanged func(cause trace.SpanContext, stored, removed []kvcache.Hash) (sequence uint64)
	// Save, if set, begins to save a prefix elsewhere, which ends with SaveDone;
	// StopSave asks to end that soon. Both are called under the driver's lock: they
	// must not block nor call the driver. Nothing is saved before LimitSaves.
	Save     func(scheduler.Save)
	StopSave func(scheduler.SaveID)
	Logger   *slog.Logger
	Metrics  *Metrics
}

// Driver runs what a scheduler decides. All methods are safe for concurrent use.
type Driver struct {
	cfg      Config
	starting engine.Starting // the engine, if steps may be started ahead; else nil
	steps    chan step       // at most one is in flight, so sending never blocks
	lost     chan struct{}   // closed when no step of the engine is of use any more
	losing   sync.Once
	lostBy   error // why; written before lost is closed

	// Of the goroutine in Run: what steps take, whose model is copied under mu, the step
	// that the engine computes, and how one is started.
	timing  latency.StepTime
	current scheduler.RunStep
	start   func(engine.Batch) error
	// They call Config.LayerDone and LayersDone for current; nil without those.
	layerDone  func(layer int)
	layersDone func()

	mu        sync.Mutex
	core      *scheduler.Scheduler
	ahead     step                               // started, and about to be sent to steps
	sequences map[scheduler.SequenceID]*Sequence // until Released
	lastID    scheduler.SequenceID
	lastEvent uint64 // number of the last change of the prefix cache
	model     latency.Model
	draining  bool
	changed   chan struct{} // closed when the load changes; nil: nobody asked since
	stepping  stepping
	running   runningStep
	traces    traces
	chores    []chore // the first one is being done
	over      bool    // Run has ended

	choring sync.WaitGroup
	fault   ownFault // of the goroutine that does chores
}

// NewDriver builds the scheduler for an engine. Run must be called for anything
// to be computed.
func NewDriver(cfg Config) (*Driver, error) {
	capacity := cfg.Engine.Capacity()
	spec := cfg.Engine.Model()
	core, err := scheduler.New(scheduler.Config{
		Pool:           kvcache.NewPool(capacity.Blocks, capacity.Layout.BlockTokens, spec.Digest, capacity.Layout.ArithmeticClass),
		BlockTokens:    capacity.Layout.BlockTokens,
		ContextTokens:  spec.ContextTokens,
		MaxBatchTokens: capacity.MaxBatchTokens,
		MaxSequences:   capacity.MaxSequences,
		ChunkTokens:    cfg.ChunkTokens,
		MaxWaiting:     cfg.MaxWaiting,
		StepBudget:     cfg.StepBudget,
		OutputShare:    cfg.OutputShare,
	})
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	d := &Driver{
		cfg:       cfg,
		steps:     make(chan step, 1),
		lost:      make(chan struct{}),
		core:      core,
		sequences: make(map[scheduler.SequenceID]*Sequence),
	}
	if cfg.LayerDone == nil && cfg.LayersDone == nil {
		d.starting, _ = cfg.Engine.(engine.Starting)
	}
	if cfg.LayerDone != nil {
		d.layerDone = func(layer int) { d.cfg.LayerDone(d.current, layer) }
	}
	if cfg.LayersDone != nil {
		d.layersDone = func() { d.cfg.LayersDone(d.current) }
	}
	return d, nil
}

// lose closes d.lost, once, for a reason.
func (d *Driver) lose(why error) {
	d.losing.Do(func() {
		d.lostBy = why
		close(d.lost)
	})
}

// Lost is closed when no step of the engine is of use any more, since its device is lost
// or since what it computes is not finite: see LostBy.
func (d *Driver) Lost() <-chan struct{} { return d.lost }

// LostBy is why, once Lost is closed: engine.ErrDeviceLost or ErrNotFinite.
func (d *Driver) LostBy() error { return d.lostBy }

// Reserve gives a sequence its id before it is submitted, so that what belongs
// to it can be found from the first step on.
func (d *Driver) Reserve() scheduler.SequenceID {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastID++
	return d.lastID
}

// Submit hands in a request whose ID came from Reserve. What becomes of it is
// read from the Sequence, which ends with Refused or Finished.
func (d *Driver) Submit(request scheduler.Request) *Sequence {
	s := &Sequence{
		id: request.ID, restore: request.Kind == scheduler.Restore, prompt: request.Tokens[:max(len(request.Tokens)-request.Generated, 0)],
		driver: d, notify: make(chan struct{}, 1),
	}
	d.mu.Lock()
	d.sequences[request.ID] = s
	d.mu.Unlock()
	d.handle(scheduler.Submit{Request: request})
	return s
}

// KVArrived says that the KV of a Receive or Restore sequence is in its blocks.
func (d *Driver) KVArrived(arrived scheduler.KVArrived) { d.handleFor(arrived.ID, arrived) }

// TransferDone says that no transfer reads or writes the sequence's blocks any
// more.
func (d *Driver) TransferDone(id scheduler.SequenceID) {
	d.handle(scheduler.TransferDone{ID: id})
}

// Drain refuses new sequences from now on. Those there are go on.
func (d *Driver) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	d.handleLocked(scheduler.Drain{})
}

// Undrain takes Drain back.
func (d *Driver) Undrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = false
	d.handleLocked(scheduler.Undrain{})
}

// CancelAll ends every sequence.
func (d *Driver) CancelAll() {
	d.mu.Lock()
	ids := make([]scheduler.SequenceID, 0, len(d.sequences))
	for id := range d.sequences {
		ids = append(ids, id)
	}
	d.mu.Unlock()
	for _, id := range ids {
		d.handle(scheduler.Cancel{ID: id})
	}
}

// handle gives one event to the scheduler and does what it asks.
func (d *Driver) handle(event scheduler.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handleLocked(event)
}

func (d *Driver) handleLocked(event scheduler.Event) {
	_, stepEnded := event.(scheduler.StepDone)
	if stepEnded {
		d.stepping.ended()
	}
	actions := d.core.Handle(time.Now(), event)
	if stepEnded {
		d.startNext(actions)
	}
	for _, action := range actions {
		d.act(action)
	}
	if stepEnded {
		d.stepping.stalls()
	}
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

func (d *Driver) act(action scheduler.Action) {
	switch a := action.(type) {
	case *scheduler.RunStep:
		for _, part := range a.Parts {
			d.stepping.add(d.sequences[part.ID], part)
		}
		d.steps <- d.nextStep(*a)
	case *scheduler.BlocksChanged:
		if d.cfg.BlocksChanged != nil {
			d.lastEvent = d.cfg.BlocksChanged(d.traces.cause, a.Stored, a.Removed)
		}
	case scheduler.Reserved:
		d.deliver(a.ID, a)
	case scheduler.Started:
		if s := d.sequences[a.ID]; s != nil && s.preempted { // before it had started
			s.preempted = false
			d.cfg.Metrics.resumed(a.Waited)
		}
		d.deliver(a.ID, a)
	case scheduler.Preempted:
		d.cfg.Metrics.preempted()
		if s := d.sequences[a.ID]; s != nil {
			s.preempted, s.decoding = true, false
		}
		d.deliver(a.ID, a)
	case scheduler.Resumed:
		d.cfg.Metrics.resumed(a.Waited)
		if s := d.sequences[a.ID]; s != nil {
			s.preempted = false
		}
		d.deliver(a.ID, a)
	case *scheduler.Sampled:
		if s := d.sequences[a.ID]; s != nil {
			s.decoding = true
			s.putToken(a)
		}
	case scheduler.Finished:
		if s := d.sequences[a.ID]; s != nil {
			s.decoding = false
			if !s.restore { // one that restores is no request
				d.cfg.Metrics.finished(a.Reason)
			}
			if a.Spoilt != nil {
				d.begin(chore{sequence: s, finished: a})
				return
			}
		}
		d.deliver(a.ID, a)
	case scheduler.Refused:
		if s := d.sequences[a.ID]; s != nil && !s.restore {
			d.cfg.Metrics.refused()
		}
		d.deliver(a.ID, a)
		delete(d.sequences, a.ID)
		d.traces.remove(a.ID)
	case scheduler.Released:
		delete(d.sequences, a.ID)
		d.traces.remove(a.ID)
	case scheduler.Save:
		d.cfg.Save(a)
	case scheduler.StopSave:
		d.cfg.StopSave(a.ID)
	case scheduler.Scrub:
		d.begin(chore{scrub: a.Blocks})
	}
}

func (d *Driver) deliver(id scheduler.SequenceID, action scheduler.Action) {
	if s := d.sequences[id]; s != nil {
		s.put(action)
	}
}

// Load is what the scheduler says of itself, with the model of its step time.
func (d *Driver) Load() (scheduler.Load, latency.Model) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Load(), d.model
}

// PoolStats counts the blocks and what became of look-ups in the prefix cache.
func (d *Driver) PoolStats() kvcache.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.PoolStats()
}

// Changed is closed when the load may have changed since the call.
func (d *Driver) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.changed
}

// Snapshot is the prefix cache and the number of the last event that is in it.
func (d *Driver) Snapshot() (hashes []kvcache.Hash, lastEvent uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Snapshot(), d.lastEvent
}

// Layout describes the engine's pages.
func (d *Driver) Layout() kvcache.Layout { return d.cfg.Engine.Capacity().Layout }

// Pages are the engine's pages.
func (d *Driver) Pages() engine.Pages { return d.cfg.Engine.Pages() }

// Remaining is how many sequences are known still, those included that ended but
// whose blocks a transfer holds.
func (d *Driver) Remaining() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sequences)
}

// Draining reports whether Drain was called, and not taken back.
func (d *Driver) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draining
}

// Idle waits until nothing is left, or until ctx ends, which is its error.
func (d *Driver) Idle(ctx context.Context) error {
	for {
		changed := d.Changed()
		left := d.Remaining()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d sequences left: %w", left, ctx.Err())
		}
	}
}
