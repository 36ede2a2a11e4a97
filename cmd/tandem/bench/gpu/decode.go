package gpu

import (
	"context"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/enginebatches"
	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/pkg/engine"
)

// waiter is an engine that says how long all its steps have waited for the device.
type waiter interface{ Waited() time.Duration }

// warmSteps of decode are not counted.
const warmSteps = 3

// decoder is one batch with one context that decodes again and again.
type decoder struct {
	place
	*enginebatches.Decoder
	engine engine.Engine
	costs  engine.Costs
}

// steps are steps of decode, as they were measured.
type steps struct {
	each []time.Duration
	took time.Duration // all of them
	cpu  time.Duration // of the thread that called them
	host time.Duration // of it all, what was no waiting for the device
}

// run decodes so many steps behind a context, after a few that are not counted.
func (d *decoder) run(ctx context.Context, context, count int) (s steps, err error) {
	runtime.LockOSThread() // whose clock is read
	defer runtime.UnlockOSThread()
	if _, err := d.repeat(ctx, context, min(warmSteps, count)); err != nil {
		return s, err
	}
	cpu, _ := processor.ThreadTime() // 0 where the system does not say
	waited := d.waited()
	s.each, err = d.repeat(ctx, context, count)
	after, _ := processor.ThreadTime()
	s.cpu = after - cpu
	for _, one := range s.each {
		s.took += one
	}
	s.host = s.took - (d.waited() - waited)
	return s, err
}

func (d *decoder) waited() time.Duration {
	if w, is := d.engine.(waiter); is {
		return w.Waited()
	}
	return 0
}

func (d *decoder) repeat(ctx context.Context, context, count int) ([]time.Duration, error) {
	d.Begin(context)
	each := make([]time.Duration, 0, count)
	for range count {
		began := time.Now()
		if err := d.Step(ctx); err != nil {
			return nil, err
		}
		each = append(each, time.Since(began))
	}
	return each, nil
}

// bytes is what one of so many steps behind a context reads, the mean over them.
func (d *decoder) bytes(context, count int) float64 {
	return enginebatches.DecodeBytes(d.costs, d.batch, context, count)
}

// short is the context that a long one is compared with, to see what attention takes; it
// is of the same pages. 0: the context is too short for that.
func (d *decoder) short() int {
	if d.context < 256 {
		return 0
	}
	return d.context / 16
}
