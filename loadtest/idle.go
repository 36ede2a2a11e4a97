package loadtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Idle is what a server does for one request at a time: medians. TPOT is 0 if answers have
// one token.
type Idle struct {
	TTFT, TPOT, E2E time.Duration
}

// Idle measures a server that has one request at a time, for as long as a run, but no longer
// than Estimate. It is zero if ctx ended.
func (s *Session) Idle(ctx context.Context) (Idle, error) {
	run, err := s.drive(ctx, "measuring it idle", 0, 1, min(s.cfg.warmup(), estimateWarmup), min(s.cfg.Duration, estimateTime))
	if err != nil || run.Interrupted {
		return Idle{}, err
	}
	completed := func(r *record.Record) bool { return r.Outcome == record.Completed && len(r.Arrivals) > 0 }
	warm := func(r *record.Record) bool { return completed(r) && r.Due >= run.From }
	counts := completed // a slow server completes none but those of the warm-up
	if slices.ContainsFunc(run.Records, warm) {
		counts = warm
	}
	var ttft, tpot, e2e []time.Duration
	for _, r := range run.Records {
		if !counts(r) {
			continue
		}
		ttft, e2e = append(ttft, r.First()-r.Dispatched), append(e2e, r.Last()-r.Dispatched)
		if r.OutputTokens > 1 {
			tpot = append(tpot, (r.Last()-r.First())/time.Duration(r.OutputTokens-1))
		}
	}
	if len(ttft) == 0 {
		return Idle{}, fmt.Errorf("no request of the %d sent one at a time was completed: %s", len(run.Records), failureOf(run))
	}
	return Idle{TTFT: stats.QuantileOf(ttft, 0.5), TPOT: stats.QuantileOf(tpot, 0.5), E2E: stats.QuantileOf(e2e, 0.5)}, nil
}
