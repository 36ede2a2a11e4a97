package queueing

import (
	"errors"
	"fmt"
	"math"
)

// Batch is a server that works on all of its requests at once, in steps, as a decode worker
// does: a step takes StepSeconds and EachSeconds for each request that runs.
type Batch struct {
	StepSeconds, EachSeconds float64
}

// Running is the mean number of requests that run, if they come at rate and each needs the
// given mean number of steps; seconds is how long a step then takes.
//
// It assumes that steps follow one another, that a request joins at once, and that the
// number which runs stays near its mean, as it does where it is large. It is Little's law,
// solved for the number: n = rate · steps · (StepSeconds + n · EachSeconds). The number has
// a Poisson distribution where steps take constant time (M/G/∞), so its standard deviation
// is about its square root.
func (b Batch) Running(rate, steps float64) (running, seconds float64, err error) {
	if err := b.check(errors.Join(number("rate", rate), number("number of steps", steps))); err != nil {
		return 0, 0, err
	}
	utilisation := rate * steps * b.EachSeconds
	if !(utilisation < 1) {
		return 0, 0, fmt.Errorf("%w: the requests of a second need %.4g s, whatever runs at once", ErrUnstable, utilisation)
	}
	running = rate * steps * b.StepSeconds / (1 - utilisation)
	return running, b.StepSeconds + running*b.EachSeconds, nil
}

// Rate is the highest rate at which steps take at most seconds, and at most limit requests
// run (0: any number). It is 0 if a step that works on one request takes
// longer, and +Inf if steps take no time.
//
// It assumes what Running does.
func (b Batch) Rate(steps, seconds, limit float64) (float64, error) {
	if err := b.check(errors.Join(number("number of steps", steps), number("step's bound", seconds), number("limit", limit))); err != nil {
		return 0, err
	}
	if steps == 0 {
		return 0, errors.New("requests need no steps: their rate has no bound")
	}
	running := math.Inf(1)
	if b.EachSeconds > 0 {
		running = (seconds - b.StepSeconds) / b.EachSeconds
	} else if b.StepSeconds > seconds {
		running = 0
	}
	if limit > 0 {
		running = min(running, limit)
	}
	if running < 1 {
		return 0, nil
	}
	if math.IsInf(running, 1) {
		return 0, errors.New("requests add nothing to a step: set the most that run at once")
	}
	return running / (steps * (b.StepSeconds + running*b.EachSeconds)), nil
}

func (b Batch) check(err error) error {
	return errors.Join(err, number("time of a step", b.StepSeconds), number("time of each request in a step", b.EachSeconds))
}
