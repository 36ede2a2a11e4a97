package workerdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Config of a Driver.
type Config struct {
	// Engine computes the steps. The driver does not close it.
	Engine engine.Engine
	worker.Limits
	// MaxDrafts is scheduler.Config's.
	MaxDrafts int
	// Mirrors, if set, gives the Mirrors of a step's batch, before each step that is not started ahead.
	// They stay as they are until the step is done.
	Mirrors func(run scheduler.RunStep) []engine.Mirror
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
	// Log, if set, records the worker.
	Log    *eventlog.Log
	Logger *slog.Logger
	// Metrics count what the driver does. Nil: some that nobody sees.
	Metrics *Metrics
}

// Driver drives a worker.Worker with an engine. All methods are safe for concurrent use.
type Driver struct {
	cfg      Config
	starting engine.AsyncStepper // the engine, if steps may be started ahead; else nil
	steps    chan step           // at most one is in flight, so sending never blocks
	lost     chan struct{}       // closed when no step of the engine is of use any more
	losing   sync.Once
	lostBy   error // engine.ErrDeviceLost or worker.ErrNotFinite; written before lost is closed

	// Of the goroutine in Run: the step that the engine computes, and how one is started.
	current scheduler.RunStep
	start   func(engine.Batch) error
	// They call Config.LayerDone and LayersDone for current; nil without those.
	layerDone  func(layer int)
	layersDone func()
	masking    sync.WaitGroup // of prepareMasks
	forcer     engine.Forcer  // of Run
	maskBudget grammar.Budget
	nextMask   int // where prepareMasks begins; its own while it runs

	loop *coreloop.Loop[*worker.Worker, worker.Event, worker.Action]

	// Guarded by loop.
	stepEnded       bool                               // the core is given a scheduler.StepDone
	ahead           step                               // started, and about to be sent to steps
	sequences       map[scheduler.SequenceID]*Sequence // until Gone
	lastID          scheduler.SequenceID
	lastEvent       uint64         // number of the last change of the prefix cache
	changed         chan struct{}  // closed when the load changes; nil: nobody asked since
	answers         []worker.Event // to what the core asked for, which it has not taken yet
	running         runningStep
	traces          traces
	backgroundTasks []backgroundTask // the first one is being done
	over            bool             // Run has ended

	background sync.WaitGroup
	looking    context.Context // of Inspect: ends when nobody needs to know any more
	endLooking context.CancelFunc
}

// NewDriver builds the worker for an engine. Run must be called for anything
// to be computed.
func NewDriver(cfg Config) (*Driver, error) {
	capacity := cfg.Engine.Capacity()
	spec := cfg.Engine.Model()
	config := worker.Config{VocabSize: spec.VocabSize, Blocks: capacity.Blocks, ModelDigest: spec.Digest, ArithmeticClass: capacity.Layout.ArithmeticClass, Scheduler: scheduler.Config{
		BlockTokens:    capacity.Layout.BlockTokens,
		ContextTokens:  spec.ContextTokens,
		MaxBatchTokens: capacity.MaxBatchTokens,
		MaxSequences:   capacity.MaxSequences,
		ChunkTokens:    cfg.ChunkTokens,
		MaxWaiting:     cfg.MaxWaiting,
		StepBudget:     cfg.StepBudget,
		OutputShare:    cfg.OutputShare,
		MaxDrafts:      cfg.MaxDrafts,
		EngineDrafts:   cfg.MaxDrafts > 0 && capacity.MakesDrafts,
	}}
	if cfg.MaxDrafts > capacity.MaxDrafts {
		return nil, fmt.Errorf("%d draft tokens: the engine verifies at most %d", cfg.MaxDrafts, capacity.MaxDrafts)
	}
	core, err := worker.New(config)
	if err != nil {
		return nil, err
	}
	if places := scheduler.Places(capacity.MaxSequences, capacity.MaxBatchTokens, capacity.Layout.BlockTokens); places < capacity.MaxSequences {
		cfg.Logger.Warn("fewer sequences run at a time than --max-sequences allows: raise --max-batch-tokens", "places", places, "max_sequences", capacity.MaxSequences, "max_batch_tokens", capacity.MaxBatchTokens, "block_tokens", capacity.Layout.BlockTokens)
	}
	if cfg.Metrics == nil {
		if cfg.Metrics, err = NewMetrics(nil, ""); err != nil {
			return nil, err
		}
	}
	d := &Driver{
		cfg:       cfg,
		steps:     make(chan step, 1),
		lost:      make(chan struct{}),
		sequences: make(map[scheduler.SequenceID]*Sequence),
	}
	d.looking, d.endLooking = context.WithCancel(context.Background())
	d.loop = coreloop.New(core, d.apply)
	if cfg.Log != nil {
		d.loop.Now = cfg.Log.Now
		d.loop.Recorder, _ = eventlog.Begin(cfg.Log, eventlog.KindWorker, config)
	}
	if cfg.LayerDone == nil && cfg.LayersDone == nil {
		d.starting, _ = cfg.Engine.(engine.AsyncStepper)
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
		d.endLooking() // this worker is at fault
	})
}

// Lost is closed when no step of the engine is of use any more, since its device is lost
// or since what it computes is not finite.
func (d *Driver) Lost() <-chan struct{} { return d.lost }

// Reserve gives a sequence its id before it is submitted, so that what belongs
// to it can be found from the first step on.
func (d *Driver) Reserve() scheduler.SequenceID {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.lastID++
	return d.lastID
}

// Submit hands in a request whose ID came from Reserve. What becomes of it, the scheduler's
// actions, is read from the Sequence, which ends with Refused or Finished.
func (d *Driver) Submit(request scheduler.Request) *Sequence {
	d.admit(&request)
	return d.begin(request, scheduler.Submit{Request: request}, true)
}

// Generate hands in what a decode worker is asked for, and Prefill what a prefill worker is.
// The request's ID came from Reserve. Sequence.Follow must be called.
func (d *Driver) Generate(g worker.Generate) *Sequence {
	d.admit(&g.Request)
	return d.begin(g.Request, g, false)
}

// Prefill is as Generate.
func (d *Driver) Prefill(p worker.Prefill) *Sequence {
	d.admit(&p.Request)
	return d.begin(p.Request, p, false)
}

// admit gets a request ready before the scheduler has it: it hashes the prompt, since no step waits for
// that, and bounds the work for its masks in each step. The only draw of a prompt is not put off: its KV is
// on its way.
func (d *Driver) admit(r *scheduler.Request) {
	if r.Hashes == nil {
		r.Hashes = d.BlockHashes(r.Salt, r.Tokens)
	}
	if c, is := r.Constraint.(*grammar.Constraint); is {
		first := -1
		if r.Kind == scheduler.PrefillOnly {
			first = r.Generated
		}
		c.Within(&d.maskBudget, first)
	}
}

func (d *Driver) begin(request scheduler.Request, event worker.Event, bare bool) *Sequence {
	s := &Sequence{id: request.ID, restore: request.Kind == scheduler.Restore, bare: bare, driver: d, notify: make(chan struct{}, 1)}
	d.loop.Lock()
	defer d.loop.Unlock()
	d.sequences[request.ID] = s
	d.handleLocked(event)
	return s
}

// Handle takes in an event of a sequence, which is the cause of what comes of it if it is traced.
func (d *Driver) Handle(id scheduler.SequenceID, event worker.Event) {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.cause(id)
	d.handleLocked(event)
	d.cause(0)
}

// KVArrived says that the KV of a Receive or Restore sequence of Submit is in its blocks.
func (d *Driver) KVArrived(arrived scheduler.KVArrived) { d.Handle(arrived.ID, arrived) }

// TransferDone says that no transfer reads or writes the blocks of a sequence of Submit any
// more.
func (d *Driver) TransferDone(id scheduler.SequenceID) {
	d.handle(scheduler.TransferDone{ID: id})
}

// Drain refuses new sequences from now on. Those there are go on.
func (d *Driver) Drain() { d.handle(scheduler.Drain{}) }

// Undrain takes Drain back.
func (d *Driver) Undrain() { d.handle(scheduler.Undrain{}) }

// CancelAll ends every sequence.
func (d *Driver) CancelAll() { d.handle(worker.CancelAll{}) }

// handle gives one event to the worker.
func (d *Driver) handle(event worker.Event) {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.handleLocked(event)
}

func (d *Driver) handleLocked(event worker.Event) { give(d, (*worker.Worker).Handle, event) }

// give gives one event to the worker, and then the answers that there are at once. The loop is
// locked.
func give[V any](d *Driver, handle func(*worker.Worker, time.Time, V) []worker.Action, event V) {
	coreloop.Step(d.loop, handle, event)
	for len(d.answers) > 0 {
		answer := d.answers[0]
		d.answers = d.answers[1:]
		d.loop.Step(answer)
	}
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// apply does what the worker asks.
func (d *Driver) apply(_ time.Time, actions []worker.Action) {
	if d.stepEnded {
		d.startNext(actions)
	}
	for _, action := range actions {
		d.act(action)
	}
}

// Load is what the scheduler says of itself, with the model of its step time.
func (d *Driver) Load() (scheduler.Load, latency.Model) {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Load()
}

// PoolStats counts the blocks and what became of look-ups in the prefix cache.
func (d *Driver) PoolStats() kvcache.Stats {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.PoolStats()
}

// Changed is closed when the load may have changed since the call.
func (d *Driver) Changed() <-chan struct{} {
	d.loop.Lock()
	defer d.loop.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.changed
}

// Snapshot is the prefix cache and the number of the last event that is in it.
func (d *Driver) Snapshot() (hashes []kvcache.Hash, lastEvent uint64) {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Snapshot(), d.lastEvent
}

// Layout describes the engine's pages.
func (d *Driver) Layout() kvcache.Layout { return d.cfg.Engine.Capacity().Layout }

// Pages are the engine's pages.
func (d *Driver) Pages() engine.Pages { return d.cfg.Engine.Pages() }

// Remaining is how many sequences are known still, those included that ended but
// whose blocks a transfer holds.
func (d *Driver) Remaining() int {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Remaining()
}

// Transfers is how many KV transfers of sequences have not ended.
func (d *Driver) Transfers() int {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Transfers()
}

// Draining reports whether Drain was called, and not taken back.
func (d *Driver) Draining() bool {
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.loop.Core.Draining()
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
