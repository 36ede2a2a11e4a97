package mesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
)

// readyTimeout bounds how long the router may take to see the workers that are
// waited for.
const readyTimeout = 30 * time.Second

// newReadiness makes the service that says that the process is ready. It is the last, so
// that readiness is taken back first of all.
func (p *process) newReadiness(ready func()) func(context.Context) ([]lifecycle.Service, error) {
	return func(context.Context) ([]lifecycle.Service, error) {
		return []lifecycle.Service{p.readiness(p.workers(), ready)}, nil
	}
}

// readiness is a service that calls ready once everything started, and takes readiness
// back first of all when the process stops. With a router it asks that which workers it
// is connected to, calls ready once all of expected are among them, and from then on
// follows whether a request could be served at all.
func (p *process) readiness(expected []string, ready func()) lifecycle.Service {
	return lifecycle.Service{
		Name: "readiness",
		Run: func(ctx context.Context) error {
			if p.watchWorkers != nil {
				return (&watch{process: p, expected: expected, ready: ready}).run(ctx)
			}
			p.ready.Store(true)
			ready()
			<-ctx.Done()
			return nil
		},
		Stop: func(context.Context) error { p.ready.Store(false); return nil },
	}
}

// watchWorkers calls notify with a router's workers of a role, all if it is not
// specified, now and whenever they change, until ctx ends or notify fails.
type watchWorkers func(ctx context.Context, role controlv1.Role, notify func([]*controlv1.WorkerView) error) error

type watch struct {
	process  *process
	expected []string
	ready    func()
	said     bool // ready was called
}

func (w *watch) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := fmt.Errorf("the router does not see its %d workers after %s: see what they log with --log-level=info", len(w.expected), readyTimeout)
	timeout := time.AfterFunc(readyTimeout, func() { cancel(late) })
	defer timeout.Stop()
	// It ends with ctx, or with the router, whose own error is the one to report.
	_ = w.process.watchWorkers(ctx, controlv1.Role_ROLE_UNSPECIFIED, func(view []*controlv1.WorkerView) error {
		w.take(view, timeout)
		return nil
	})
	w.process.served.Store(false)
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), late) {
		return late
	}
	return nil
}

func (w *watch) take(view []*controlv1.WorkerView, timeout *time.Timer) {
	connected, decodes := make(map[string]bool), false
	for _, v := range view {
		if record := v.GetRecord(); v.GetConnected() {
			connected[record.GetId()] = true
			decodes = decodes || record.GetRole() == controlv1.Role_ROLE_DECODE && v.GetExcluded() == "" && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING
		}
	}
	w.process.served.Store(decodes)
	missing := slices.ContainsFunc(w.expected, func(id string) bool { return !connected[id] })
	if w.said || missing || !timeout.Stop() {
		return
	}
	w.said = true
	w.process.ready.Store(true)
	w.ready()
}
