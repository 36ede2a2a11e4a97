package loadtest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// ticker is a custom token stream: one token per millisecond.
type ticker struct{}

func (ticker) Describe(context.Context) (client.Description, error) {
	return client.Description{Kind: "ticker", Model: "tick", VocabularySize: 1000, ContextTokens: 4096}, nil
}

func (ticker) Do(ctx context.Context, q *workload.Request, clock client.Clock, r *record.Record) workload.Answer {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	r.Sent, r.Outcome = clock.Now(), record.Completed
	for r.OutputTokens < q.MaxTokens && r.Outcome == record.Completed {
		select {
		case <-tick.C:
			r.OutputTokens++
			r.Arrivals = append(r.Arrivals, record.Arrival{At: clock.Now(), Tokens: 1})
		case <-ctx.Done():
			r.Outcome = record.Cancelled
		}
	}
	r.End = clock.Now()
	return workload.Answer{}
}

func (ticker) Close() error { return nil }

func Example() {
	cfg := loadtest.DefaultConfig()
	cfg.Rate, cfg.Warmup, cfg.Duration = 40, 0, 250*time.Millisecond
	cfg.Workload.Arrival = workload.Constant
	out, err := loadtest.Run(context.Background(), cfg, ticker{}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d of %d requests completed, %.0f tokens each\n", out.Report.Completed, out.Report.Requests, out.Report.OutputTokensMean)
	// Output: 10 of 10 requests completed, 128 tokens each
}
