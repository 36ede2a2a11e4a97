package router

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// GetBudget is what requests spent of their budget.
func (c *controlServer) GetBudget(context.Context, *controlv1.GetBudgetRequest) (*controlv1.GetBudgetResponse, error) {
	now := time.Now()
	out := c.service.metrics.spending.report(now)
	out.Overruns = overruns(&c.service.config.Budget.Declared, c.service.records.finished(now.Add(-c.service.config.Budget.Window)))
	return out, nil
}

// report is the windows as they are now.
func (s *spending) report(now time.Time) *controlv1.GetBudgetResponse {
	counts := s.counts.Snapshot(now)
	out := &controlv1.GetBudgetResponse{
		Window:   durationpb.New(s.config.Window),
		Requests: uint64(counts[countFinished]),
		Failed:   uint64(counts[countFailed]),
		Breaches: uint64(counts[countBroken]),
	}
	lineOf := func(name string, declared time.Duration, w *latency.Window, breaches int64) *controlv1.BudgetLine {
		d := w.Snapshot(now)
		l := &controlv1.BudgetLine{
			Name: name, Count: uint64(d.Count), SumNs: int64(d.Sum), MaxNs: int64(d.Max),
			P50Ns: int64(d.Quantile(.5)), P90Ns: int64(d.Quantile(.9)), P95Ns: int64(d.Quantile(.95)),
			P99Ns: int64(d.Quantile(.99)), P999Ns: int64(d.Quantile(.999)), Breaches: uint64(breaches),
		}
		if declared > 0 {
			l.Declared = durationpb.New(declared)
		}
		return l
	}
	line := func(name string, declared time.Duration, w *latency.Window, breaches int64) *controlv1.BudgetLine {
		l := lineOf(name, declared, w, breaches)
		out.Lines = append(out.Lines, l)
		return l
	}
	out.Parts = append(out.Parts, lineOf(partFetch, 0, s.fetch, 0))
	for stage := range latency.NumStages {
		l := line(stage.String(), s.config.Declared.Stages[stage], s.stages[stage], counts[countStages+int(stage)])
		l.PerToken = stage == latency.StageDecode
	}
	for total := range latency.NumTotals {
		l := line(total.String(), s.config.Declared.Totals[total], s.totals[total], counts[countTotals+int(total)])
		l.Total, l.PerToken = true, total == latency.TotalTPOT
	}
	return out
}

// overrunPercentiles are where overruns are looked for: the usual percentile of an
// SLO, and further out only if that one holds.
var overrunPercentiles = []float64{99, 99.9, 100}

// overruns finds where requests exceed what is declared. It looks at requests
// rather than at the percentiles of stages, since those do not add up.
func overruns(declared *latency.Budget, requests []finished) []*controlv1.BudgetOverrun {
	var out []*controlv1.BudgetOverrun
	for total, limit := range declared.Totals {
		if limit == 0 {
			continue
		}
		out = appendOverrun(out, declared, latency.Total(total).String(), limit, requests,
			func(s *latency.Spent) (time.Duration, bool) { return s.Total(latency.Total(total)) },
			func(s *latency.Spent) latency.Stage { return declared.BrokenBy(latency.Total(total), s) })
	}
	for stage, limit := range declared.Stages {
		stage := latency.Stage(stage)
		if limit == 0 || declared.Bounded(stage) {
			continue
		}
		out = appendOverrun(out, declared, stage.String(), limit, requests,
			func(s *latency.Spent) (time.Duration, bool) { return stageTime(stage, s) },
			func(*latency.Spent) latency.Stage { return stage })
	}
	return out
}

func appendOverrun(out []*controlv1.BudgetOverrun, declared *latency.Budget, name string, limit time.Duration, requests []finished,
	spent func(*latency.Spent) (time.Duration, bool), broke func(*latency.Spent) latency.Stage,
) []*controlv1.BudgetOverrun {
	ranked := rank(requests, spent)
	if len(ranked) == 0 {
		return out
	}
	for _, percentile := range overrunPercentiles {
		r := ranked[rankIndex(percentile, len(ranked))]
		took, _ := spent(r.spent)
		if took <= limit {
			continue
		}
		stage := broke(r.spent)
		of, _ := stageTime(stage, r.spent)
		return append(out, &controlv1.BudgetOverrun{
			Name: name, Percentile: percentile, SpentNs: int64(took), DeclaredNs: int64(limit),
			Stage: stage.String(), StageSpentNs: int64(of), StageDeclaredNs: int64(declared.Stages[stage]), RequestId: r.id,
		})
	}
	return out
}

// rankIndex is the index of a percentile among n that are sorted: that of the
// least one which this share, rounded up, does not exceed.
func rankIndex(percentile float64, n int) int {
	return min(max(int(math.Ceil(percentile/100*float64(n)-1e-9)), 1), n) - 1
}

// explainSlowest is the record of the request at a percentile.
func (c *controlServer) explainSlowest(q *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
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
	ranked := rank(c.service.records.finished(time.Time{}), func(s *latency.Spent) (time.Duration, bool) { return s.Total(total) })
	if len(ranked) == 0 {
		return nil, rpc.Error(codes.NotFound, reasonRequestNotFound, "no request has ended well at this router yet", 0)
	}
	i := rankIndex(percentile, len(ranked))
	out := c.service.records.get(ranked[i].id)
	if out == nil || out.GetTimings() == nil { // pushed out meanwhile, or its id was used again
		return nil, rpc.Error(codes.Unavailable, reasonRequestNotFound, "requests come so fast that this one was forgotten meanwhile; ask again", time.Second)
	}
	out.Rank, out.Ranked = uint32(len(ranked)-i), uint32(len(ranked))
	return out, nil
}
