package control

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
)

// GetBudget is what requests spent of their budget.
func (c *Server) GetBudget(context.Context, *controlv1.GetBudgetRequest) (*controlv1.GetBudgetResponse, error) {
	return c.deps.Spending.Report(time.Now(), c.deps.Records.Finished), nil
}

// explainSlowest is the record of the request at a percentile.
func (c *Server) explainSlowest(q *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
	by, percentile := q.GetSlowest().GetBy(), q.GetSlowest().GetPercentile()
	if q.GetRequestId() != "" {
		return nil, rpc.InvalidArgument("slowest", "is set beside request_id: set one of them")
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
		return nil, rpc.InvalidArgument("slowest.by", fmt.Sprintf("%d is no latency", by))
	}
	slowest, place, of := latencybudget.Slowest(c.deps.Records.Finished(time.Time{}), total, percentile)
	if of == 0 {
		return nil, rpc.Error(codes.NotFound, api.ReasonRequestNotFound, "no request has ended well at this router yet", 0)
	}
	out := c.deps.Records.Get(slowest.ID)
	if out == nil || out.GetTimings() == nil { // pushed out meanwhile
		return nil, rpc.Error(codes.Unavailable, api.ReasonRequestNotFound, "requests come so fast that this one was forgotten meanwhile; ask again", time.Second)
	}
	out.Rank, out.Ranked = uint32(place), uint32(of)
	return out, nil
}
