package tracing

import (
	"context"

	"github.com/tandem-serving/tandem/loadtest/client"
)

// StudentT is studentT.
func StudentT(v float64) float64 { return studentT(v) }

// IntervalOf is intervalOf.
func IntervalOf(values []float64) Interval { return intervalOf(values) }

// Send sends a block of two requests as the options say.
func Send(ctx context.Context, o Options, to client.Client) error {
	return block{
		requests: 2, concurrency: 1, promptTokens: o.PromptTokens, maxTokens: o.OutputTokens, vocabulary: 10, timeout: o.requestTimeout(),
	}.send(ctx, to)
}
