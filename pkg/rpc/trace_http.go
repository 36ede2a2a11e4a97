package rpc

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-serving/tandem/pkg/api"
)

// HTTPTrace moves the trace context of an HTTP request's headers into a context,
// as servers of this package do for calls of gRPC. What is not valid, or there
// more than once, counts as none.
func HTTPTrace(ctx context.Context, header http.Header) context.Context {
	if len(header.Values(api.HeaderTraceParent)) != 1 {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
}
