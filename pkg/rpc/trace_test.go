package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

func TestEndSpan(t *testing.T) {
	for _, c := range []struct {
		err          error
		code, reason string
		status       otelcodes.Code
	}{
		{nil, "OK", "", otelcodes.Unset},
		{rpc.Error(codes.Canceled, "CANCELLED", "the secret", 0), "CANCELLED", "CANCELLED", otelcodes.Unset},
		{rpc.InvalidArgument("prompt", "the secret"), "INVALID_ARGUMENT", api.ReasonInvalidField, otelcodes.Unset},
		{rpc.Error(codes.Unavailable, "WORKER_LOST", "the secret", 0), "UNAVAILABLE", "WORKER_LOST", otelcodes.Error},
		{errors.New("the secret"), "UNKNOWN", "", otelcodes.Error},
		{rpc.Error(codes.Code(99), "ODD", "the secret", 0), "UNKNOWN", "ODD", otelcodes.Unset},
	} {
		spans := tracetest.NewSpanRecorder()
		_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "call")
		rpc.EndSpan(span, c.err)
		got := spans.Ended()[0]
		values := map[attribute.Key]string{}
		for _, a := range got.Attributes() {
			values[a.Key] = a.Value.String()
			if strings.Contains(a.Value.String(), "secret") {
				t.Errorf("%v: %s says %q", c.err, a.Key, a.Value.String())
			}
		}
		if values["rpc.response.status_code"] != c.code || values["tandem.reason"] != c.reason || got.Status().Code != c.status || strings.Contains(got.Status().Description, "secret") {
			t.Errorf("%v: %v, status %v", c.err, values, got.Status())
		}
	}
}

func TestTraceParent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := rpc.TraceParent(rpc.ParseTraceParent(good)); got != good {
		t.Errorf("got %q", got)
	}
	if got := rpc.TraceParent(rpc.ParseTraceParent(strings.Replace(good, "-01", "-00", 1))); got != "" {
		t.Errorf("what is not sampled is told: %q", got)
	}
	if got := rpc.TraceParent(trace.SpanContext{}); got != "" {
		t.Errorf("nothing is told as %q", got)
	}
}

// Whatever comes as a traceparent, what is made of it is valid or nothing.
func FuzzParseTraceParent(f *testing.F) {
	for _, seed := range []string{
		"", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-\x00-é-01",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		span := rpc.ParseTraceParent(text)
		if !span.IsValid() {
			if told := rpc.TraceParent(span); told != "" {
				t.Errorf("%q is not valid and told on as %q", text, told)
			}
			return
		}
		if !span.IsRemote() {
			t.Errorf("%q is not remote", text)
		}
		if again := rpc.ParseTraceParent(rpc.TraceParent(span)); span.IsSampled() && (again.TraceID() != span.TraceID() || again.SpanID() != span.SpanID()) {
			t.Errorf("%q became %v", text, again)
		}
	})
}

// A call without a trace pays nothing for it, at either end.
func TestNoTraceCostsNothing(t *testing.T) {
	ctx := rpc.WithRequestID(context.Background(), "id")
	if n := testing.AllocsPerRun(100, func() {
		if rpc.IncomingTrace(ctx) != ctx || rpc.OutgoingTrace(ctx) != ctx {
			t.Error("the context changed")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHTTPTrace(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		header http.Header
		valid  bool
	}{
		{http.Header{"Traceparent": {good}, "Tracestate": {"a=b"}}, true},
		{http.Header{}, false},
		{http.Header{"Traceparent": {"nonsense"}}, false},
		{http.Header{"Traceparent": {good, good}}, false},
	} {
		span := trace.SpanContextFromContext(rpc.HTTPTrace(t.Context(), c.header))
		if span.IsValid() != c.valid || c.valid && (span.TraceState().String() != "a=b" || !span.IsRemote()) {
			t.Errorf("%v: %v", c.header, span)
		}
	}
}
