package mesh

import (
	"context"
	"errors"
	"fmt"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	// readyTimeout bounds how long the router may take to see the workers that
	// are waited for.
	readyTimeout = 30 * time.Second
	// watchAgain is the pause before a broken watch is begun again.
	watchAgain = time.Second
)

// workerReadiness is a service that calls ready once everything started, and
// takes readiness back first of all when the process stops.
func (p *process) workerReadiness(ready func()) lifecycle.Service {
	return lifecycle.Service{
		Name: "readiness",
		Run: func(ctx context.Context) error {
			p.ready.Store(true)
			ready()
			<-ctx.Done()
			return nil
		},
		Stop: p.unready,
	}
}

// routerReadiness is workerReadiness for a process with a router: it asks the
// router at address which workers it is connected to, calls ready once all of
// expected are among them, and from then on follows whether a request could be
// served at all.
func (p *process) routerReadiness(address string, expected []string, ready func()) lifecycle.Service {
	return lifecycle.Service{
		Name: "readiness",
		Run: func(ctx context.Context) error {
			w := &watch{process: p, expected: expected, ready: ready}
			return w.run(ctx, address)
		},
		Stop: p.unready,
	}
}

func (p *process) unready(context.Context) error { p.ready.Store(false); return nil }

// watch follows a router's workers.
type watch struct {
	process  *process
	expected []string
	ready    func()
	said     bool // ready was called
}

func (w *watch) run(ctx context.Context, address string) error {
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := fmt.Errorf("the router does not see its %d workers after %s: see what they log with --log-level=info", len(w.expected), readyTimeout)
	timeout := time.AfterFunc(readyTimeout, func() { cancel(late) })
	defer timeout.Stop()
	for {
		err := w.follow(ctx, controlv1.NewControlClient(conn), timeout)
		w.process.served.Store(false)
		if errors.Is(context.Cause(ctx), late) {
			return late
		}
		if ctx.Err() != nil {
			return nil
		}
		if !w.said {
			return fmt.Errorf("ask the router for its workers: %w", err)
		}
		pause := time.NewTimer(watchAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

// follow reads views until the stream breaks.
func (w *watch) follow(ctx context.Context, client controlv1.ControlClient, timeout *time.Timer) error {
	stream, err := client.WatchWorkers(ctx, &controlv1.ListWorkersRequest{})
	if err != nil {
		return err
	}
	for {
		view, err := stream.Recv()
		if err != nil {
			return err
		}
		connected, decodes := make(map[string]bool), false
		for _, v := range view.GetWorkers() {
			if record := v.GetRecord(); v.GetConnected() {
				connected[record.GetId()] = true
				decodes = decodes || record.GetRole() == controlv1.Role_ROLE_DECODE && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING
			}
		}
		w.process.served.Store(decodes)
		if w.said || !allUsable(connected, w.expected) || !timeout.Stop() {
			continue
		}
		w.said = true
		w.process.ready.Store(true)
		w.ready()
	}
}

func allUsable(usable map[string]bool, ids []string) bool {
	for _, id := range ids {
		if !usable[id] {
			return false
		}
	}
	return true
}
