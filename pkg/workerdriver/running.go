package workerdriver

import (
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

const (
	// longTimes is how many times longer than predicted a step runs before it is
	// complained of, and longAtLeast how long that is at least: routers leave a worker
	// alone that is silent for about as long.
	longTimes   = 50
	longAtLeast = 2 * time.Second
)

// runningStep is the step that the engine works on.
type runningStep struct {
	since     time.Time // zero: there is none
	predicted time.Duration
	sequences int
	said      bool // that it runs for long
}

// noteStepStart notes that the engine works on a step from now on.
func (d *Driver) noteStepStart(run scheduler.RunStep) {
	work := run.Batch.Work()
	d.loop.Lock()
	defer d.loop.Unlock()
	d.running = runningStep{since: time.Now(), predicted: d.loop.Core.StepTime().Predict(work), sequences: len(run.Parts)}
}

// noteStepEnd notes that it does not any more.
func (d *Driver) noteStepEnd() {
	d.loop.Lock()
	ran := d.running
	d.running = runningStep{}
	d.loop.Unlock()
	if ran.said {
		d.cfg.Logger.Warn("the step that ran far too long has ended", slog.Duration("running", time.Since(ran.since)))
	}
}

// complain says once of each step that it runs for far longer than steps do here. Nothing
// ends it: an engine cannot be interrupted, and routers send their requests elsewhere.
func (d *Driver) complain() {
	d.loop.Lock()
	step := d.running
	running := time.Since(step.since)
	long := !step.since.IsZero() && !step.said && running > max(longAtLeast, longTimes*step.predicted)
	d.running.said = step.said || long
	d.loop.Unlock()
	if long {
		d.cfg.Logger.Error("an engine step is running far longer than usual: if it does not end, the engine hangs; restart the worker",
			slog.Duration("running", running), slog.Duration("predicted", step.predicted), slog.Int("sequences", step.sequences))
	}
}
