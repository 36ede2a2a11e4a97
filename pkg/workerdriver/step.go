package workerdriver

import (
	"context"
	"errors"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// step is a step that is to be computed, or that the device computes already.
type step struct {
	run     scheduler.RunStep
	traced  *tracedStep
	started bool  // and is to be waited for
	err     error // of starting it
}

// Run computes steps until ctx ends. A step that is under way then is cut short, or
// waited for where a device computes it, and its sequences fail; all others are ended as by
// CancelAll. What is submitted later fails.
func (d *Driver) Run(ctx context.Context) {
	if d.starting != nil {
		d.start = func(batch engine.Batch) error { return d.starting.Start(ctx, batch) }
	}
	for {
		select {
		case <-ctx.Done():
			d.endBackgroundTasks()
			d.endSteps(ctx.Err())
			return
		case next := <-d.steps:
			if !next.started && next.err == nil {
				next.traced = d.stepBegins(next.run)
			}
			d.noteStepStart(next.run)
			d.prepareMasks(next.run.Batch)
			out, err := d.compute(ctx, next)
			d.masking.Wait() // the batch is the scheduler's from here on
			d.noteStepEnd()
			next.traced.ended(next.run, out.Compute, err)
			d.stepDone(next.traced.sequence(), d.outcome(ctx, next.run, out, err))
			d.account(next.run, out, err)
		}
	}
}

// endSteps ends all sequences, and the step that nobody computes any more: one that was started is
// waited for. There are no others afterwards.
func (d *Driver) endSteps(why error) {
	d.CancelAll() // first, so that nobody who waits begins
	select {
	case next := <-d.steps:
		if next.started {
			out, err := d.starting.Wait()
			next.traced.ended(next.run, out.Compute, err)
		}
		d.handle(scheduler.StepDone{Err: why})
	default:
	}
}

// compute gives what the engine made of a step.
func (d *Driver) compute(ctx context.Context, next step) (engine.Output, error) {
	switch {
	case next.err != nil:
		return engine.Output{}, next.err
	case next.started:
		return d.starting.Wait()
	}
	d.current = next.run
	batch := next.run.Batch
	if d.cfg.Mirrors != nil {
		batch.Mirrors = d.cfg.Mirrors(next.run)
	}
	batch.LayerDone, batch.LayersDone = d.layerDone, d.layersDone
	return d.cfg.Engine.Step(ctx, batch)
}

// outcome is what the scheduler hears of a step.
func (d *Driver) outcome(ctx context.Context, run scheduler.RunStep, out engine.Output, err error) scheduler.StepDone {
	if err == nil {
		return scheduler.StepDone{Tokens: out.Tokens, Accepted: out.Accepted, Drafts: out.Drafts, Logprobs: out.Logprobs, DraftLogprobs: out.DraftLogprobs, PromptLogprobs: out.PromptLogprobs, Cut: out.Cut, Forced: d.forcer.Forced(run.Batch, &out), Compute: out.Compute, Drafting: out.Drafting, Reading: out.Reading}
	}
	if ctx.Err() == nil {
		d.cfg.Logger.Error("engine step failed", "error", err, "sequences", len(run.Parts))
	}
	if errors.Is(err, engine.ErrDeviceLost) {
		d.lose(engine.ErrDeviceLost)
	}
	return scheduler.StepDone{Err: err}
}

// account counts a step that is over. The next one may be under way.
func (d *Driver) account(run scheduler.RunStep, out engine.Output, err error) {
	if err != nil {
		d.cfg.Metrics.stepFailed()
		return
	}
	work := out.Work(run.Batch)
	took := out.Compute + out.Drafting
	d.loop.Lock()
	// Routers are told what steps of this size take. To read a prompt with the draft model is no part of that.
	give(d, (*worker.Worker).HandleStepTook, worker.StepTook{Work: work, Compute: took - out.Reading})
	d.loop.Unlock()
	d.cfg.Metrics.stepDone(work.Prefill.Tokens+work.Decode.Tokens, len(run.Parts), took)
	d.cfg.Metrics.stepCost(work, out.Compute)
	d.cfg.Metrics.drafts(run.Batch, &out)
}

// startNext starts the step that the end of another one led to, before its tokens are
// handed out and counted: the device computes meanwhile. A step with prompts is not
// started, since the owners of those that begin hear of that first. The loop is locked, by the
// goroutine in Run.
func (d *Driver) startNext(actions []worker.Action) {
	if d.start == nil || len(actions) == 0 {
		return
	}
	run, is := actions[len(actions)-1].(*scheduler.RunStep)
	if !is || prompts(run.Parts) {
		return
	}
	d.ahead = step{run: *run, traced: d.stepBeginsLocked(*run)}
	d.ahead.err = d.start(run.Batch)
	d.ahead.started = d.ahead.err == nil
}

// nextStep is the step of an action: the one that was started ahead, if there is one.
func (d *Driver) nextStep(run scheduler.RunStep) step {
	next := d.ahead
	if d.ahead = (step{}); next.started || next.err != nil {
		return next
	}
	return step{run: run}
}

func prompts(parts []scheduler.Part) bool {
	return slices.ContainsFunc(parts, func(p scheduler.Part) bool { return p.Prompt })
}
