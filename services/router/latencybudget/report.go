package latencybudget

import (
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
