package tracecost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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
func (b block) send(ctx context.Context, client inferencev1.InferenceClient) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var senders sync.WaitGroup
	for range b.concurrency {
		senders.Go(func() {
			for i := next.Add(1); i <= int64(b.requests) && ctx.Err() == nil; i = next.Add(1) {
				if err := b.one(ctx, client, uint64(i)); err != nil {
					cancel(fmt.Errorf("request %d: %w", i, err))
				}
			}
		})
	}
	senders.Wait()
	return context.Cause(ctx)
}

// one sends a request and reads its answer.
func (b block) one(ctx context.Context, client inferencev1.InferenceClient, i uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, fmt.Errorf("it had not ended after %s", b.timeout))
	defer cancel()
	// Prompts differ, so that no prefix cache helps.
	random := rand.New(rand.NewPCG(b.number, i))
	ids := make([]uint32, b.promptTokens)
	for k := range ids {
		ids[k] = uint32(random.IntN(b.vocabulary))
	}
	stream, err := client.Generate(ctx, &inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}},
		MaxTokens: proto.Uint32(uint32(b.maxTokens)),
		IgnoreEos: true,
		Mode:      inferencev1.Mode_MODE_DISAGGREGATED,
		Sampling:  &inferencev1.Sampling{Temperature: proto.Float32(0), Seed: proto.Uint64(1)},
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
