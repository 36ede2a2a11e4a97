package serving

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
)

// NewText is the text of a request, for tests with tokenizers of other models.
func NewText(t *tokenizer.Tokenizer, prompt []int32, stops []string) interface {
	Push(token int32) (out, stop string)
	Flush() (out, stop string)
} {
	return newText(t, prompt, stops)
}

// TokenCounter is what counts one token, for tests of what that costs.
func TokenCounter(registerer prometheus.Registerer) (func(now, last time.Time), error) {
	spending, err := latencybudget.NewSpending(latencybudget.DefaultConfig(), nil)
	if err != nil {
		return nil, err
	}
	set := metricset.New(registerer)
	m := newMetrics(set, spending)
	return func(now, last time.Time) { m.token(inferencev1.Mode_MODE_DISAGGREGATED, now, last) }, set.Err()
}

// Traces says whether a request would be traced, for tests of what that costs.
func Traces(ctx context.Context, tracing Tracing) bool {
	return traceRequest(ctx, tracing, time.Time{}, "id", Caller{}, nil) != nil
}
