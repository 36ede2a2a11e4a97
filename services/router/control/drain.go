package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// Drain lets a worker finish what it has and leave.
func (c *Server) Drain(q *controlv1.DrainRequest, stream grpc.ServerStreamingServer[controlv1.DrainProgress]) error {
	if err := preprocess.CheckDuration("grace", q.GetGrace()); err != nil {
		return err
	}
	// One after the other until the worker has taken it: each has to know of the last.
	select {
	case c.drains <- struct{}{}:
	case <-stream.Context().Done():
		return clienterr.Gone(stream.Context())
	case <-c.deps.Leaving.Done():
		return clienterr.ShuttingDown()
	}
	next := sync.OnceFunc(func() { <-c.drains })
	defer next()
	views, _ := c.deps.Dispatcher.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	view, err := named(q.GetWorkerId(), views)
	if err != nil {
		return err
	}
	if drained(view) || view == nil && c.deps.Dispatcher.Left(q.GetWorkerId()) != nil {
		return nil // without progress
	}
	if view == nil {
		return noWorker(q.GetWorkerId())
	}
	if err := checkLast(view, views, c.deps.Dispatcher.Disaggregated()); err != nil && !q.GetForce() {
		return err
	}
	ref := routing.Ref{ID: view.GetRecord().GetId(), Epoch: view.GetRecord().GetEpoch()}
	conn, _, release, err := c.deps.Dispatcher.Acquire(ref)
	if err != nil {
		return clienterr.Status(err)
	}
	defer release()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(c.deps.Leaving, func() { cancel(clienterr.ShuttingDown()) })() // the drain goes on
	silent := time.AfterFunc(drainTimeout, func() {
		cancel(rpc.Error(codes.Unavailable, api.ReasonWorkerSilent, fmt.Sprintf("%s did not say within %v that it drains: 'tandem workers' shows whether it does", ref.ID, drainTimeout), 0))
	})
	defer silent.Stop()
	progress, err := workerv1.NewWorkerClient(conn).Drain(ctx, &workerv1.DrainRequest{Epoch: ref.Epoch, Grace: q.GetGrace()})
	for err == nil {
		var p *workerv1.DrainProgress
		if p, err = progress.Recv(); err == nil {
			silent.Stop()
			c.deps.Dispatcher.Handle(routing.Leaving{Worker: ref})
			next()
			err = stream.Send(&controlv1.DrainProgress{Sequences: p.GetSequences(), Transfers: p.GetTransfers()})
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		c.deps.Dispatcher.Handle(routing.Leaving{Worker: ref, Drained: true})
		return nil
	case ctx.Err() != nil && stream.Context().Err() == nil:
		return context.Cause(ctx)
	}
	return clienterr.Status(fmt.Errorf("drain %s: %w", ref.ID, err))
}

func drained(view *controlv1.WorkerView) bool {
	return view.GetRecord().GetState() == controlv1.WorkerState_WORKER_STATE_DRAINED
}

// named is the worker that has an id; nil: there is none.
func named(id string, views []*controlv1.WorkerView) (*controlv1.WorkerView, error) {
	if id == "" {
		return nil, rpc.InvalidArgument("worker_id", "is empty")
	}
	for _, v := range views {
		if v.GetRecord().GetId() == id {
			return v, nil
		}
	}
	return nil, nil
}

func noWorker(id string) error {
	return rpc.Error(codes.NotFound, api.ReasonWorkerNotFound, fmt.Sprintf("there is no worker %q: 'tandem workers' lists them", clienterr.Shorten(id)), 0)
}

// checkLast refuses a drain after which nobody of the worker's role would serve. Every request takes
// two workers if the policy is disaggregated.
func checkLast(view *controlv1.WorkerView, views []*controlv1.WorkerView, disaggregated bool) error {
	if !api.Serves(view) {
		return nil // nothing gets worse
	}
	role := view.GetRecord().GetRole()
	for _, v := range views {
		if v != view && v.GetRecord().GetRole() == role && v.GetRecord().GetModel() == view.GetRecord().GetModel() && api.Serves(v) {
			return nil
		}
	}
	decodes := !disaggregated && slices.ContainsFunc(views, func(v *controlv1.WorkerView) bool {
		r := v.GetRecord()
		return v != view && r.GetModel() == view.GetRecord().GetModel() && api.Serves(v) && (r.GetRole() == controlv1.Role_ROLE_DECODE || r.GetWholeRequests())
	})
	what, then := "decode worker", "prefill workers would do all of every request"
	switch {
	case role == controlv1.Role_ROLE_PREFILL && decodes:
		what, then = "prefill worker", "decode workers would compute all prompts"
	case role == controlv1.Role_ROLE_PREFILL:
		what, then = "prefill worker", "no request could be served"
	case role == controlv1.Role_ROLE_DECODE && !decodes:
		then = "no request could be served"
	case role == controlv1.Role_ROLE_KVTRANSFER:
		what, then = "block store", "what it holds would be computed again"
	}
	return rpc.Error(codes.FailedPrecondition, api.ReasonLastWorker,
		fmt.Sprintf("%s is the only %s that serves, and without it %s: start another one first, or force it (--force)", view.GetRecord().GetId(), what, then), 0)
}

const (
	// drainTimeout is how long a worker may take to begin to drain.
	drainTimeout = 10 * time.Second
	// undrainTimeout bounds a call to a worker that may be gone.
	undrainTimeout = 5 * time.Second
)

// Undrain takes a Drain back.
func (c *Server) Undrain(ctx context.Context, q *controlv1.UndrainRequest) (*controlv1.UndrainResponse, error) {
	views, _ := c.deps.Dispatcher.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	view, err := named(q.GetWorkerId(), views)
	if err != nil {
		return nil, err
	}
	record := view.GetRecord()
	if record == nil {
		if record = c.deps.Dispatcher.Left(q.GetWorkerId()); record == nil {
			return nil, noWorker(q.GetWorkerId())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, undrainTimeout)
	defer cancel()
	if err := c.undrain(ctx, record); err != nil {
		return nil, clienterr.Status(fmt.Errorf("undrain %s: %w", record.GetId(), err))
	}
	c.deps.Dispatcher.Undrained(record)
	return &controlv1.UndrainResponse{}, nil
}

// undrain asks a worker, which may have left, at each of its addresses in turn.
func (c *Server) undrain(ctx context.Context, record *controlv1.WorkerRecord) error {
	err := errors.New("its record has no address")
	for _, address := range record.GetAddresses() {
		var conn *grpc.ClientConn
		if conn, err = c.deps.Dial(address); err != nil {
			continue
		}
		_, err = workerv1.NewWorkerClient(conn).Undrain(ctx, &workerv1.UndrainRequest{Epoch: record.GetEpoch()})
		_ = conn.Close()
		if err == nil || rpc.Reason(err) != "" { // it answered
			return err
		}
	}
	return err
}
