package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/frontpage"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
)

// readyTimeout bounds how long the router may take to see the workers that are
// waited for.
const readyTimeout = 30 * time.Second

// newReadiness makes the service that says that the process is ready. It is the last, so
// that readiness is taken back first of all.
func (p *process) newReadiness(ready func(unserved string)) func(context.Context) ([]lifecycle.Service, error) {
	return func(context.Context) ([]lifecycle.Service, error) {
		return []lifecycle.Service{p.readiness(p.workers(), ready)}, nil
	}
}

// readiness is a service that calls ready once everything started, and takes readiness
// back first of all when the process stops. With a router it asks that which workers it
// is connected to, calls ready once all of expected are among them and a request could be
// served, and from then on follows whether one could. A router that expects nobody waits for
// as long as it takes: it calls ready with why none could at first, and again, with nothing, when
// one could.
func (p *process) readiness(expected []string, ready func(unserved string)) lifecycle.Service {
	return lifecycle.Service{
		Name: "readiness",
		Run: func(ctx context.Context) error {
			if p.watchWorkers != nil {
				return (&watch{process: p, expected: expected, ready: ready}).run(ctx)
			}
			p.ready.Store(true)
			ready("")
			<-ctx.Done()
			return nil
		},
		Stop: func(context.Context) error {
			p.ready.Store(false)
			if p.running != nil && p.stopping != nil {
				p.stopping(p.running())
			}
			return nil
		},
	}
}

// watchWorkers calls notify with a router's workers and why they could serve no request, empty if
// they could, now and whenever that changes, until ctx ends or notify fails.
type watchWorkers func(ctx context.Context, notify func(workers []*controlv1.WorkerView, unserved string) error) error

type watch struct {
	process  *process
	expected []string
	ready    func(unserved string)
	waits    bool   // ready was called with why no request could be served
	said     bool   // ready was called without
	lacks    string // why the router is not ready, as of the last view
}

var errLate = errors.New("the router is not ready in time")

func (w *watch) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	inTime := func() bool { return true }
	if len(w.expected) > 0 {
		timeout := time.AfterFunc(readyTimeout, func() { cancel(errLate) })
		defer timeout.Stop()
		inTime = timeout.Stop
	}
	// It ends with ctx, or with the router, whose own error is the one to report.
	_ = w.process.watchWorkers(ctx, func(view []*controlv1.WorkerView, unserved string) error {
		w.take(view, unserved, inTime)
		return nil
	})
	w.serves("the router stops")
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), errLate) {
		return fmt.Errorf("not ready after %s: %s: see what the workers log with --log-level=info", readyTimeout, cmp.Or(w.lacks, "the router knows no workers yet"))
	}
	return nil
}

// take takes in a view; inTime says, once, that the workers came in time.
func (w *watch) take(view []*controlv1.WorkerView, unserved string, inTime func() bool) {
	connected, pools := make(map[string]bool), new(frontpage.Workers)
	count := map[controlv1.Role]*int{
		controlv1.Role_ROLE_PREFILL: &pools.Prefill, controlv1.Role_ROLE_DECODE: &pools.Decode, controlv1.Role_ROLE_KVTRANSFER: &pools.KVTransfer,
	}
	for _, v := range view {
		record := v.GetRecord()
		if !v.GetConnected() {
			continue
		}
		connected[record.GetId()] = true
		if pool := count[record.GetRole()]; pool != nil && api.Serves(v) {
			*pool++
		}
	}
	w.process.pools.Store(pools)
	w.serves(unserved)
	missing := slices.DeleteFunc(slices.Clone(w.expected), func(id string) bool { return connected[id] })
	if w.lacks = unserved; len(missing) > 0 {
		w.lacks = "the router is not connected to " + strings.Join(missing, ", ")
	}
	switch {
	case w.said || len(missing) > 0:
	case unserved == "" && inTime():
		w.said = true
		w.process.ready.Store(true)
		w.ready("")
	case len(w.expected) == 0 && !w.waits:
		w.waits = true
		w.process.ready.Store(true) // of the process itself there is nothing to wait for
		w.ready(unserved)
	}
}

// serves notes why no request could be served; empty: one could.
func (w *watch) serves(unserved string) {
	w.process.unserved.Store(&unserved)
	if set := w.process.setReady; set != nil {
		set(unserved == "")
	}
}
