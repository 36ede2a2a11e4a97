package workerdriver_test

import (
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// What is not sampled has no trace and pays nothing for that.
func TestUnsampledCallsHaveNoTrace(t *testing.T) {
	tracer := sdktrace.NewTracerProvider().Tracer("test")
	sampled := rpc.ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	for name, c := range map[string]struct {
		parent trace.SpanContext
		tracer trace.Tracer
	}{
		"no parent":      {trace.SpanContext{}, tracer},
		"not sampled":    {sampled.WithTraceFlags(0), tracer},
		"nobody to tell": {sampled, nil},
	} {
		ctx := trace.ContextWithRemoteSpanContext(t.Context(), c.parent)
		if n := testing.AllocsPerRun(100, func() {
			if after, spans := workerdriver.StartTrace(ctx, c.tracer, "tandem.decode", workerv1.Decode_Run_FullMethodName, nil); spans != nil || after != ctx {
				t.Errorf("%s: it is traced", name)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	ctx, spans := workerdriver.StartTrace(trace.ContextWithRemoteSpanContext(t.Context(), sampled), tracer, "tandem.decode", workerv1.Decode_Run_FullMethodName, nil)
	if spans == nil || trace.SpanContextFromContext(ctx).TraceID() != sampled.TraceID() {
		t.Fatal("a sampled call is not traced")
	}
	spans.End(nil)
}
