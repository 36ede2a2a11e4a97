package loadtest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

const (
	// estimateConcurrency requests are kept running to see what the server can do at
	// most, for estimateTime after estimateWarmup.
	estimateConcurrency = 64
	estimateTime        = 10 * time.Second
	estimateWarmup      = 3 * time.Second
)

// Estimate is the rate at which the server completes requests when 64 are kept
// running, or as many as may run: its capacity, or a little less. It is 0 if ctx
// ended.
func (s *Session) Estimate(ctx context.Context) (float64, error) {
	run, err := s.drive(ctx, "estimating the capacity", 0, min(estimateConcurrency, s.cfg.InFlightLimit), estimateWarmup, estimateTime)
	if err != nil || run.Interrupted {
		return 0, err
	}
	if capacity := throughput(run); capacity > 0 {
		return capacity, nil
	}
	return 0, fmt.Errorf("no request of the %d sent to estimate the capacity was completed: %s; pass rates, as in --sweep=1,2,4 or --find-max --rate=1",
		len(run.Records), failureOf(run))
}

// Rates are those that a sweep around a capacity measures: close to one another
// where the knee is to be expected, and past the breaking point.
func Rates(capacity float64) []float64 {
	var rates []float64
	for _, fraction := range []float64{0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.15, 1.4} {
		rates = append(rates, rounded(fraction*capacity))
	}
	return rates
}

// throughput is the rate at which requests were completed in the window.
func throughput(run *record.Run) float64 {
	completed := 0
	for _, r := range run.Records {
		if r.Outcome == record.Completed && r.End >= run.From && r.End <= run.To {
			completed++
		}
	}
	return float64(completed) / (run.To - run.From).Seconds()
}

// failureOf is what the first request that was not completed died of.
func failureOf(run *record.Run) string {
	for _, r := range run.Records {
		if r.Outcome != record.Completed && r.Outcome != record.Cancelled {
			return fmt.Sprintf("%s %s: %s", r.Outcome, r.Code, r.Error)
		}
	}
	return "they took too long"
}

// rounded keeps three digits, so that a rate can be typed again.
func rounded(rate float64) float64 {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(rate, 'g', 3, 64), 64) // it was a number before
	return short
}
