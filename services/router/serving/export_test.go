package router

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/tokenizer"
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
	m, err := newMetrics(registerer, DefaultConfig())
	if err != nil {
		return nil, err
	}
	return func(now, last time.Time) { m.token(inferencev1.Mode_MODE_DISAGGREGATED, now, last) }, nil
}

// Traces says whether a request would be traced, for tests of what that costs.
func Traces(ctx context.Context, tracing Tracing) bool {
	s := &Service{deps: Deps{Tracing: tracing}}
	return s.traceRequest(ctx, time.Time{}, "id", nil) != nil
}
