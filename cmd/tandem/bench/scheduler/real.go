package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// ValidateFor checks the plan for an engine of a model of that name and context.
func (p Plan) ValidateFor(name string, contextTokens int) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if longest := p.ContextTokens(); longest > contextTokens {
		return fmt.Errorf("--long-prompt, --short-prompt and --max-tokens: sequences of up to %d tokens are more than the %d that %s takes", longest, contextTokens, name)
	}
	return nil
}

func (p Plan) engineConfig() cpu.Config {
	return cpu.Config{Blocks: p.blocks(), BlockTokens: p.BlockTokens, MaxBatchTokens: p.BatchTokens, MaxSequences: p.Sequences}
}

// Bytes is about the memory that loading the model and measuring takes.
func (p Plan) Bytes(spec model.Spec) int64 { return cpu.FootprintBytes(spec, p.engineConfig()) }

// Real runs every policy of the plan on an engine on weights, which nobody else uses
// meanwhile, each within limit. progress, if set, is told after each policy how many are
// done.
func Real(ctx context.Context, w *cpu.Weights, p Plan, limit time.Duration, progress func(done, total int64)) (*Result, error) {
	if err := p.ValidateFor(w.Spec().Name, w.Spec().ContextTokens); err != nil {
		return nil, err
	}
	result := newResult(p, "real")
	result.Model, result.ISA, result.Threads = w.Spec().Name, w.ISA(), w.Threads()
	for i, policy := range p.Policies {
		row, err := runReal(ctx, w, p, policy, limit)
		if err != nil {
			return nil, fmt.Errorf("policy %d: %w", i+1, err)
		}
		result.Rows = append(result.Rows, row)
		if progress != nil {
			progress(int64(i+1), int64(len(p.Policies)))
		}
	}
	return result, nil
}

func runReal(ctx context.Context, w *cpu.Weights, p Plan, policy Policy, limit time.Duration) (_ Row, err error) {
	e, err := w.NewEngine(p.engineConfig())
	if err != nil {
		return Row{}, fmt.Errorf("cpu engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return drive(ctx, e, p, policy, limit)
}

// watched is an engine whose steps are counted.
type watched struct {
	engine.Engine
	epoch   time.Time
	changed chan struct{} // has one element if a step was done since the last look
	current scheduler.RunStep

	ended   time.Duration
	lively  bool // sequences of the last step go on
	between []time.Duration

	mu        sync.Mutex // taken before the driver's
	driver    *workerdriver.Driver
	collector *collector
	live      map[scheduler.SequenceID]*workerdriver.Sequence // of LongPrompt
	err       error                                           // of a step
}

// begins is told by the driver which step the engine computes.
func (w *watched) begins(run scheduler.RunStep, layer int) {
	if layer == 0 {
		w.current = run
	}
}

// Step computes a step, ends those that are long enough, and counts it. The long prompt
// of LongPrompt comes before the next is planned.
func (w *watched) Step(ctx context.Context, b engine.Batch) (engine.Output, error) {
	began := time.Since(w.epoch)
	if w.lively {
		w.between = append(w.between, began-w.ended)
	}
	out, err := w.Engine.Step(ctx, b)
	w.ended = time.Since(w.epoch)
	w.count(&b, out, err, began)
	if err == nil && w.collector.plan.Scenario == LongPrompt {
		_, _, err = w.submitDue()
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return out, err
}

// count takes the outcome of the step that ended.
func (w *watched) count(b *engine.Batch, out engine.Output, err error, began time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	w.collector.end(b, out.Tokens, int32(w.Model().VocabSize))
	w.collector.step(b, w.current.Parts, began, w.ended)
	w.lively = false
	for _, part := range w.current.Parts {
		w.lively = w.lively || w.collector.byID[part.ID] != nil
	}
}

func drive(ctx context.Context, e engine.Engine, p Plan, policy Policy, limit time.Duration) (_ Row, err error) {
	registry := prometheus.NewRegistry()
	metrics, err := workerdriver.NewMetrics(registry, "bench")
	if err != nil {
		return Row{}, fmt.Errorf("worker's metrics: %w", err)
	}
	w := &watched{Engine: e, epoch: time.Now(), changed: make(chan struct{}, 1), collector: newCollector(p, policy, new(learned)), live: make(map[scheduler.SequenceID]*workerdriver.Sequence)}
	driver, err := workerdriver.NewDriver(workerdriver.Config{
		Engine: w, Limits: worker.Limits{ChunkTokens: policy.ChunkTokens, MaxWaiting: p.waiting(), StepBudget: policy.StepBudget, OutputShare: policy.OutputShare},
		LayerDone: w.begins, Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
	})
	if err != nil {
		return Row{}, fmt.Errorf("make a driver: %w", err)
	}
	w.driver = driver
	limited, cancel := context.WithTimeout(ctx, limit)
	done := make(chan struct{})
	go func() { defer close(done); driver.Run(limited) }()
	err = w.play(limited)
	if err == nil {
		err = driver.Idle(limited)
	}
	cancel()
	<-done // from here on all is ours
	err = errors.Join(w.err, err)
	switch {
	case err == nil:
	case ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded):
		return Row{}, fmt.Errorf("it took longer than --limit, %v: raise that, or choose a smaller model, shorter prompts or fewer requests", limit)
	default:
		return Row{}, err
	}
	row := w.collector.row()
	if row.Preemptions, err = preemptions(registry); err != nil {
		return Row{}, err
	}
	row.BetweenUs = new(spread(w.between, time.Microsecond))
	return row, nil
}

// play submits the arrivals when they are due, and cancels who is left.
func (w *watched) play(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, over, err := w.submitDue()
		if err != nil || over {
			return err
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-w.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// untilChanged is a wait that a step ends.
const untilChanged = time.Hour

// submitDue hands the driver what is due and says how long nothing is, or that nothing
// comes any more; then it has cancelled who is to be.
func (w *watched) submitDue() (wait time.Duration, over bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		due, comes := w.collector.arrivals.due()
		wait = due - time.Since(w.epoch)
		switch {
		case w.err != nil:
			return 0, false, w.err
		case w.collector.arrivals.over():
			for _, r := range w.collector.arrivals.cut() {
				w.live[r.id].Cancel()
			}
			return 0, true, nil
		case !comes:
			return untilChanged, false, nil
		case wait > 0:
			return wait, false, nil
		}
		if err := w.submit(w.collector.arrivals.take()); err != nil {
			return 0, false, err
		}
	}
}

// submit hands the driver a request. It is called with mu held.
func (w *watched) submit(r *request) error {
	id := w.driver.Reserve()
	w.collector.submitted(r, id)
	sequence := w.driver.Submit(r.submission(w.collector.plan.Seed, w.Model().VocabSize))
	if w.collector.plan.Scenario == LongPrompt {
		w.live[id] = sequence
	}
	for _, action := range sequence.Take() {
		if refused, is := action.(scheduler.Refused); is {
			return fmt.Errorf("the scheduler refused request %d, reason %d", refused.ID, refused.Reason)
		}
	}
	return nil
}

// preemptions is what the worker's metrics say of them.
func preemptions(from prometheus.Gatherer) (int, error) {
	families, err := from.Gather()
	if err != nil {
		return 0, fmt.Errorf("read the worker's metrics: %w", err)
	}
	for _, family := range families {
		if family.GetName() == "tandem_worker_preemptions_total" && len(family.GetMetric()) == 1 {
			return int(family.GetMetric()[0].GetCounter().GetValue()), nil
		}
	}
	return 0, errors.New("read the worker's metrics: there is no tandem_worker_preemptions_total")
}
