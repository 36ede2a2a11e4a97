package tracing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// block is some requests that are sent to one mesh. Blocks of equal numbers are
// the same requests.
type block struct {
	number       uint64
	requests     int
	concurrency  int
	promptTokens int
	maxTokens    int
	vocabulary   int
	timeout      time.Duration // of one request
}

// send sends them all, so many at a time, and returns the first error.
func (b block) send(ctx context.Context, to client.Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var senders sync.WaitGroup
	for range b.concurrency {
		senders.Go(func() {
			for i := next.Add(1); i <= int64(b.requests) && ctx.Err() == nil; i = next.Add(1) {
				if err := b.one(ctx, to, uint64(i)); err != nil {
					cancel(fmt.Errorf("request %d: %w", i, err))
				}
			}
		})
	}
	senders.Wait()
	return context.Cause(ctx)
}

func (b block) one(ctx context.Context, to client.Client, i uint64) error {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	// Prompts differ, so that no prefix cache helps.
	random := rand.New(rand.NewPCG(b.number, i))
	ids := make([]uint32, b.promptTokens)
	for k := range ids {
		ids[k] = uint32(random.IntN(b.vocabulary))
	}
	var r record.Record
	to.Do(ctx, &workload.Request{Prompt: workload.Prompt{TokenIDs: ids}, MaxTokens: b.maxTokens, Exact: true, Seed: 1}, client.NewClock(time.Now()), &r)
	switch r.Outcome {
	case record.Completed:
		return nil
	case record.TimedOut:
		return fmt.Errorf("it had not ended after %s", b.timeout)
	}
	return fmt.Errorf("%s: %s", r.Code, r.Error)
}
