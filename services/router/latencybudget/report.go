package latencybudget

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Report is the windows as they are now, and where the requests of the last one, which
// finished gives, exceed what is declared.
func (s *Spending) Report(now time.Time, finished func(since time.Time) []Request) *controlv1.GetBudgetResponse {
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
	for stage := range api.NumStages {
		l := line(stage.String(), s.config.Declared.Stages[stage], s.stages[stage], counts[countStages+int(stage)])
		l.PerToken = stage == api.StageDecode
	}
	for total := range latency.NumTotals {
		l := line(total.String(), s.config.Declared.Totals[total], s.totals[total], counts[countTotals+int(total)])
		l.Total, l.PerToken = true, total == latency.TotalTPOT
	}
	out.Overruns = overruns(&s.config.Declared, finished(now.Add(-s.config.Window)))
	return out
}

// overrunPercentiles are where overruns are looked for: the usual percentile of an
// SLO, and further out only if that one holds.
var overrunPercentiles = []float64{99, 99.9, 100}

// overruns finds where requests exceed what is declared. It looks at requests
// rather than at the percentiles of stages, since those do not add up.
func overruns(declared *latency.Budget, requests []Request) []*controlv1.BudgetOverrun {
	var out []*controlv1.BudgetOverrun
	for total, limit := range declared.Totals {
		if limit == 0 {
			continue
		}
		out = appendOverrun(out, declared, latency.Total(total).String(), limit, requests,
			func(s *latency.Spent) (time.Duration, bool) { return s.Total(latency.Total(total)) },
			func(s *latency.Spent) api.Stage { return declared.BrokenBy(latency.Total(total), s) })
	}
	for stage, limit := range declared.Stages {
		stage := api.Stage(stage)
		if limit == 0 || declared.Bounded(stage) {
			continue
		}
		out = appendOverrun(out, declared, stage.String(), limit, requests,
			func(s *latency.Spent) (time.Duration, bool) { return stageTime(stage, s) },
			func(*latency.Spent) api.Stage { return stage })
	}
	return out
}

func appendOverrun(out []*controlv1.BudgetOverrun, declared *latency.Budget, name string, limit time.Duration, requests []Request,
	spent func(*latency.Spent) (time.Duration, bool), broke func(*latency.Spent) api.Stage,
) []*controlv1.BudgetOverrun {
	ranked := rank(requests, spent)
	if len(ranked) == 0 {
		return out
	}
	for _, percentile := range overrunPercentiles {
		r := ranked[rankIndex(percentile, len(ranked))]
		took, _ := spent(r.Spent)
		if took <= limit {
			continue
		}
		stage := broke(r.Spent)
		of, _ := stageTime(stage, r.Spent)
		return append(out, &controlv1.BudgetOverrun{
			Name: name, Percentile: percentile, SpentNs: int64(took), DeclaredNs: int64(limit),
			Stage: stage.String(), StageSpentNs: int64(of), StageDeclaredNs: int64(declared.Stages[stage]), RequestId: r.ID,
		})
	}
	return out
}

// rankIndex is the index of a percentile among n that are sorted: that of the
// least one which this share, rounded up, does not exceed.
func rankIndex(percentile float64, n int) int {
	return min(max(int(math.Ceil(percentile/100*float64(n)-1e-9)), 1), n) - 1
}

// Request is a request that ended well. Two owners may have requests of one id.
type Request struct {
	Owner, ID string
	Spent     *latency.Spent
}

// rank sorts the requests that have a latency by it, those that are equal by id.
func rank(requests []Request, by func(*latency.Spent) (time.Duration, bool)) []Request {
	var out []Request
	for _, r := range requests {
		if _, ok := by(r.Spent); ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Request) int {
		x, _ := by(a.Spent)
		y, _ := by(b.Spent)
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a.ID, b.ID), strings.Compare(a.Owner, b.Owner))
	})
	return out
}

// Slowest is the request at a percentile of a total, 100 for the slowest, and which of
// how many it is, counted from the slowest; of 0 if none has that total.
func Slowest(requests []Request, total latency.Total, percentile float64) (r Request, place, of int) {
	ranked := rank(requests, func(s *latency.Spent) (time.Duration, bool) { return s.Total(total) })
	if len(ranked) == 0 {
		return Request{}, 0, 0
	}
	i := rankIndex(percentile, len(ranked))
	return ranked[i], len(ranked) - i, len(ranked)
}
