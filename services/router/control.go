package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// controlServer is the operators' API.
type controlServer struct {
	controlv1.UnimplementedControlServer
	service *Service
}

func toWorkerView(v fleet.View) *controlv1.WorkerView {
	out := &controlv1.WorkerView{
		Record: v.Record, Load: v.Load, Connected: v.Connected, Registered: v.Registered, InFlight: uint32(v.InFlight),
	}
	if v.Load != nil {
		out.LoadAge = durationpb.New(v.LoadAge)
	}
	return out
}

// ListWorkers is the router's view of its workers.
func (c *controlServer) ListWorkers(_ context.Context, q *controlv1.ListWorkersRequest) (*controlv1.ListWorkersResponse, error) {
	if err := checkRole(q.GetRole()); err != nil {
		return nil, err
	}
	views, _ := c.service.dispatcher.workers(q.GetRole())
	return &controlv1.ListWorkersResponse{Workers: views}, nil
}

func checkRole(role controlv1.Role) error {
	if _, ok := controlv1.Role_name[int32(role)]; !ok {
		return rpc.InvalidArgument("role", fmt.Sprintf("%d is no role", role))
	}
	return nil
}

// watchLeast is the shortest time between two views of one watcher.
const watchLeast = 200 * time.Millisecond

// WatchWorkers sends that view now and whenever it changes.
func (c *controlServer) WatchWorkers(q *controlv1.ListWorkersRequest, stream grpc.ServerStreamingServer[controlv1.ListWorkersResponse]) error {
	if err := checkRole(q.GetRole()); err != nil {
		return err
	}
	ctx := stream.Context()
	for {
		views, changed := c.service.dispatcher.workers(q.GetRole())
		if err := stream.Send(&controlv1.ListWorkersResponse{Workers: views}); err != nil {
			return err
		}
		pause := time.NewTimer(watchLeast)
		due := pause.C
		for changed != nil || due != nil { // both have to come
			select {
			case <-changed:
				changed = nil
			case <-due:
				due = nil
			case <-c.service.leaving:
				pause.Stop()
				return shuttingDown()
			case <-ctx.Done():
				pause.Stop()
				return gone(ctx)
			}
		}
	}
}

// Drain lets a worker finish what it has and leave.
func (c *controlServer) Drain(q *controlv1.DrainRequest, stream grpc.ServerStreamingServer[controlv1.DrainProgress]) error {
	if q.GetWorkerId() == "" {
		return rpc.InvalidArgument("worker_id", "is empty")
	}
	if err := checkDuration("grace", q.GetGrace()); err != nil {
		return err
	}
	views, _ := c.service.dispatcher.workers(controlv1.Role_ROLE_UNSPECIFIED)
	var ref fleet.Ref
	for _, v := range views {
		if v.GetRecord().GetId() == q.GetWorkerId() {
			ref = fleet.Ref{ID: v.GetRecord().GetId(), Epoch: v.GetRecord().GetEpoch()}
		}
	}
	if ref.ID == "" {
		return rpc.Error(codes.NotFound, reasonWorkerNotFound, fmt.Sprintf("there is no worker %q; list the workers", shorten(q.GetWorkerId())), 0)
	}
	conn, release, err := c.service.pool.acquire(ref)
	if err != nil {
		return toStatus(err)
	}
	defer release()
	progress, err := workerv1.NewWorkerClient(conn).Drain(stream.Context(), &workerv1.DrainRequest{Epoch: ref.Epoch, Grace: q.GetGrace()})
	for err == nil {
		var p *workerv1.DrainProgress
		if p, err = progress.Recv(); err == nil {
			err = stream.Send(&controlv1.DrainProgress{Sequences: p.GetSequences(), Transfers: p.GetTransfers()})
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return toStatus(fmt.Errorf("drain %s: %w", ref.ID, err))
}

// Explain is the record of how a request was routed.
func (c *controlServer) Explain(_ context.Context, q *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
	if q.GetSlowest() != nil {
		return c.explainSlowest(q)
	}
	record := c.service.records.get(q.GetRequestId())
	if record == nil {
		return nil, rpc.Error(codes.NotFound, reasonRequestNotFound,
			fmt.Sprintf("request %q is not among the last %d of this router", shorten(q.GetRequestId()), keptRecords), 0)
	}
	return record, nil
}

// SetPolicy changes the policy of every router.
func (c *controlServer) SetPolicy(ctx context.Context, q *controlv1.SetPolicyRequest) (*controlv1.SetPolicyResponse, error) {
	policy := q.GetPolicy()
	if policy == nil {
		policy = &controlv1.Policy{}
	}
	if err := checkPolicy(policy); err != nil {
		return nil, err
	}
	if err := c.service.deps.Members.SetPolicy(ctx, policy); err != nil {
		if ctx.Err() != nil {
			return nil, gone(ctx)
		}
		if status.Code(err) != codes.Unknown {
			return nil, toStatus(err)
		}
		return nil, rpc.Error(codes.Unavailable, reasonPolicyNotKept, fmt.Sprintf("the policy was not changed: %v; retry when etcd is back", err), time.Second)
	}
	return &controlv1.SetPolicyResponse{Policy: c.service.dispatcher.setPolicy(policy, c.service.config)}, nil
}
