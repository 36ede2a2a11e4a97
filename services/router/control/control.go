package control

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/records"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
	"github.com/tandem-serving/tandem/services/router/scalingdriver"
	"github.com/tandem-serving/tandem/services/router/workers"
)

// Server is the Control API. Its methods are safe for concurrent use.
type Server struct {
	controlv1.UnimplementedControlServer
	deps Deps
	// drains has room for one, who asks a worker to drain, until that has answered.
	drains chan struct{}
}

// Deps is what operators look at and change.
type Deps struct {
	Models     *preprocess.Models
	Dispatcher *routingdriver.Dispatcher
	Membership *workers.MembershipView
	Sizes      *scalingdriver.Sizes
	Records    *records.Ring
	Spending   *latencybudget.Spending
	Members    PolicyStore
	// Defaults is what is in force where no policy says other.
	Defaults *controlv1.Policy
	// Dial makes a connection to a worker, which is closed after one call.
	Dial func(address string) (*grpc.ClientConn, error)
	// Leaving ends when the router stops.
	Leaving context.Context
	Logger  *slog.Logger
	// Still says whether who calls may still operate; nil: callers are not asked.
	Still func(ctx context.Context) error
}

// PolicyStore has the policy of all routers.
type PolicyStore interface {
	// SetPolicy replaces the policy in every router, as membership.Client.SetPolicy does.
	SetPolicy(ctx context.Context, policy *controlv1.Policy, ifRevision int64) (revision int64, err error)
}

// New returns the server; all of deps but Still has to be there.
func New(deps Deps) *Server { return &Server{deps: deps, drains: make(chan struct{}, 1)} }

// ListWorkers is the router's view of its workers.
func (c *Server) ListWorkers(_ context.Context, q *controlv1.ListWorkersRequest) (*controlv1.ListWorkersResponse, error) {
	if err := checkRole(q.GetRole()); err != nil {
		return nil, err
	}
	views, _ := c.deps.Dispatcher.Workers(q.GetRole())
	return c.listing(views, q.GetRole()), nil
}

// listing is the workers of a role, with what else operators should know.
func (c *Server) listing(views []*controlv1.WorkerView, role controlv1.Role) *controlv1.ListWorkersResponse {
	out := c.deps.Membership.Listing(views)
	out.Pools = c.deps.Sizes.Pools(role)
	out.Queues = c.deps.Sizes.Queues(time.Now(), c.deps.Dispatcher.Queued())
	return out
}

func checkRole(role controlv1.Role) error {
	if _, ok := controlv1.Role_name[int32(role)]; !ok {
		return rpc.InvalidArgument("role", fmt.Sprintf("%d is not a role", role))
	}
	return nil
}

// watchLeast is the shortest time between two views of one watcher.
const watchLeast = 200 * time.Millisecond

// WatchWorkers sends that view now and whenever it changes, for as long as the caller may see it: a
// watch has no end of its own.
func (c *Server) WatchWorkers(q *controlv1.ListWorkersRequest, stream grpc.ServerStreamingServer[controlv1.ListWorkersResponse]) error {
	if err := checkRole(q.GetRole()); err != nil {
		return err
	}
	return c.Watch(stream.Context(), q.GetRole(), func(views []*controlv1.WorkerView) error {
		if c.deps.Still != nil {
			if err := c.deps.Still(stream.Context()); err != nil {
				return err
			}
		}
		return stream.Send(c.listing(views, q.GetRole()))
	})
}

// Watch calls notify, from this goroutine, with the router's view of its
// workers of a role, now and whenever it changes, until ctx ends, the router stops or
// notify fails; the error says which.
func (c *Server) Watch(ctx context.Context, role controlv1.Role, notify func([]*controlv1.WorkerView) error) error {
	for {
		views, changed := c.deps.Dispatcher.Workers(role)
		if err := notify(views); err != nil {
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
			case <-c.deps.Leaving.Done():
				pause.Stop()
				return clienterr.ShuttingDown()
			case <-ctx.Done():
				pause.Stop()
				return clienterr.Gone(ctx)
			}
		}
	}
}

// Explain is the record of how a request was routed.
func (c *Server) Explain(_ context.Context, q *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
	if q.GetSlowest() != nil {
		return c.explainSlowest(q)
	}
	record, matches := c.deps.Records.Get(q.GetRequestId())
	switch {
	case matches == 0:
		return nil, rpc.Error(codes.NotFound, api.ReasonRequestNotFound,
			fmt.Sprintf("request %q is not among the last %d of this router", clienterr.Shorten(q.GetRequestId()), records.Kept), 0)
	case matches > 1:
		return nil, clienterr.SeveralRequests(q.GetRequestId(), matches)
	}
	return record, nil
}

// explainSlowest is the record of the request at a percentile.
func (c *Server) explainSlowest(q *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
	by, percentile := q.GetSlowest().GetBy(), q.GetSlowest().GetPercentile()
	if q.GetRequestId() != "" {
		return nil, rpc.InvalidArgument("slowest", "is set together with request_id: set only one")
	}
	if !(percentile > 0 && percentile <= 100) { // so that NaN is refused too
		return nil, rpc.InvalidArgument("slowest.percentile", fmt.Sprintf("%v is not above 0 and at most 100", percentile))
	}
	total := latency.TotalTTFT
	switch by {
	case controlv1.RankBy_RANK_BY_UNSPECIFIED, controlv1.RankBy_RANK_BY_TTFT:
	case controlv1.RankBy_RANK_BY_E2E:
		total = latency.TotalE2E
	default:
		return nil, rpc.InvalidArgument("slowest.by", fmt.Sprintf("%d is not a latency", by))
	}
	slowest, place, of := latencybudget.Slowest(c.deps.Records.Finished(time.Time{}), total, percentile)
	if of == 0 {
		return nil, rpc.Error(codes.NotFound, api.ReasonRequestNotFound, "no request has succeeded at this router yet", 0)
	}
	out := c.deps.Records.GetExact(slowest.Owner, slowest.ID)
	if out == nil || out.GetTimings() == nil { // pushed out meanwhile
		return nil, rpc.Error(codes.Unavailable, api.ReasonRequestNotFound, "too many newer requests pushed this one out meanwhile; ask again", time.Second)
	}
	out.Rank, out.Ranked = uint32(place), uint32(of)
	return out, nil
}

// GetBudget is what requests spent of their budget.
func (c *Server) GetBudget(context.Context, *controlv1.GetBudgetRequest) (*controlv1.GetBudgetResponse, error) {
	return c.deps.Spending.Report(time.Now(), c.deps.Records.Finished), nil
}
