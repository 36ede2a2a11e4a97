// Package lifecycle starts the parts of a process in order and stops them in
// reverse: a table of modules says which parts there are and what they need.
//
// Any main, service or test may import it; it imports nothing of Tandem. It
// owns one goroutine for each Run and, while stopping, one for each Stop, and
// waits for all of them, except for functions that ignore the end of their
// context: those are named in the error and left behind.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// Service is one part of a process. Any of its functions may be nil.
type Service struct {
	// Name is for log lines and errors.
	Name string
	// Start makes the service ready and returns; services that come later rely
	// on it. Its context ends when the process is asked to stop.
	Start func(context.Context) error
	// Run works until its context ends or it has nothing left to do. That
	// context ends only once Stop of the same service has returned, so what
	// runs can finish what Stop drains. A Run that returns stops the process.
	Run func(context.Context) error
	// Stop ends the work: it takes nothing new, finishes what it has and lets
	// Run return. When its context ends it drops what is left.
	Stop func(context.Context) error
	// Close frees what the service was made with. It is called when all services have
	// stopped, whether this one was started or not, and may take its time.
	Close func() error
}

// running is a service whose Start went well.
type running struct {
	Service
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
}

// Run starts the services in order, runs all of them and blocks. When ctx ends or the
// first Run returns, it stops them in reverse order, each one only after the one started
// later has ended. A Start that fails, or ctx ending before all are started, stops those
// started. In the end all are closed, in reverse order.
//
// stopTimeout bounds all Stops together: their context ends then. What ignores that is
// abandoned and named in the error, after a grace of three seconds, or stopTimeout if that is
// less. Each Stop and each Run that ignores it has that grace, one after the other.
//
// Run returns the first error of any Start, Run or Stop, in order of time, that
// is not the cancellation of a context, and those of Close; nil if there was none. A
// panic in Start, Run or Stop counts as its error; its stack is logged.
func Run(ctx context.Context, log *slog.Logger, stopTimeout time.Duration, services ...Service) error {
	var failure firstError
	var started []*running
	ended := make(chan struct{}) // closed when the first Run has returned
	endOnce := sync.OnceFunc(func() { close(ended) })

	ok := true
	for _, service := range services {
		if ctx.Err() != nil {
			ok = false
			break
		}
		if err := call(ctx, log, service.Name, service.Start); err != nil {
			failure.add(fmt.Errorf("start %s: %w", service.Name, err))
			ok = false
			break
		}
		log.Debug("service started", slog.String("service", service.Name))
		started = append(started, &running{Service: service})
	}
	if ok {
		runContext := context.WithoutCancel(ctx)
		for _, service := range started {
			if service.Service.Run == nil {
				continue
			}
			var serviceContext context.Context
			serviceContext, service.cancel = context.WithCancel(runContext)
			service.done = make(chan struct{})
			go func() {
				defer close(service.done)
				if err := call(serviceContext, log, service.Name, service.Service.Run); err != nil {
					failure.add(fmt.Errorf("run %s: %w", service.Name, err))
				}
				endOnce()
			}()
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
	}
	stop(log, stopTimeout, started, &failure)
	return errors.Join(failure.get(), closeAll(services))
}

// stop ends the services in reverse order.
func stop(log *slog.Logger, timeout time.Duration, started []*running, failure *firstError) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	grace := min(3*time.Second, timeout)
	for i := len(started) - 1; i >= 0; i-- {
		service := started[i]
		if service.Service.Stop != nil {
			stopped := make(chan error, 1)
			go func() { stopped <- call(ctx, log, service.Name, service.Service.Stop) }()
			if err, ok := await(ctx, grace, stopped); !ok {
				failure.add(fmt.Errorf("stop %s: still busy after %s", service.Name, timeout))
			} else if err != nil {
				failure.add(fmt.Errorf("stop %s: %w", service.Name, err))
			}
		}
		if service.cancel != nil {
			service.cancel()
			if _, ok := await(ctx, grace, service.done); !ok {
				failure.add(fmt.Errorf("run %s: still busy after it was stopped", service.Name))
			}
		}
		log.Debug("service stopped", slog.String("service", service.Name))
	}
}

// await waits for a value until ctx has ended and grace has passed besides.
func await[T any](ctx context.Context, grace time.Duration, c <-chan T) (T, bool) {
	select {
	case v := <-c:
		return v, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case v := <-c:
		return v, true
	case <-timer.C:
		var zero T
		return zero, false
	}
}

// call calls f of a service, if there is one, and makes an error of a panic, whose stack it logs.
func call(ctx context.Context, log *slog.Logger, service string, f func(context.Context) error) (err error) {
	if f == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			log.Error("service panicked", slog.String("service", service), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f(ctx)
}

// firstError keeps the first error that is not a cancellation.
type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) add(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *firstError) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
