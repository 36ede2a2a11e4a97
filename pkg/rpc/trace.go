package rpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
)

// incomingTrace moves the caller's trace context into the context. What is not
// valid, or there more than once, counts as none.
func incomingTrace(ctx context.Context) context.Context {
	values := metadata.ValueFromIncomingContext(ctx, api.HeaderTraceParent)
	if len(values) != 1 {
		return ctx
	}
	headers := propagation.MapCarrier{api.HeaderTraceParent: values[0]}
	if states := metadata.ValueFromIncomingContext(ctx, api.HeaderTraceState); len(states) > 0 {
		headers[api.HeaderTraceState] = states[0]
	}
	return propagation.TraceContext{}.Extract(ctx, headers)
}

// outgoingTrace adds the context's span to what is sent, if it is sampled.
func outgoingTrace(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() || !span.IsSampled() {
		return ctx
	}
	headers := []string{api.HeaderTraceParent, TraceParent(span)}
	if state := span.TraceState().String(); state != "" {
		headers = append(headers, api.HeaderTraceState, state)
	}
	return metadata.AppendToOutgoingContext(ctx, headers...)
}

// TraceParent is a span as the W3C header traceparent has it; empty for one that
// is not sampled, whose parts of a trace nobody will make.
func TraceParent(span trace.SpanContext) string {
	if !span.IsValid() || !span.IsSampled() {
		return ""
	}
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + trace.FlagsSampled.String()
}

// ParseTraceParent is the remote span that a W3C traceparent names. Empty or
// malformed text gives a SpanContext that is not valid.
func ParseTraceParent(text string) trace.SpanContext {
	if text == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{api.HeaderTraceParent: text})
	return trace.SpanContextFromContext(ctx)
}

// EndSpan ends the span of a call with its outcome: the gRPC code, and for an
// error the reason that Error gave it. The message stays out, since it may quote
// what a client sent. What the caller did (cancel, a bad or refused request) is
// no error of the span, as OpenTelemetry has it for servers.
func EndSpan(span trace.Span, err error, options ...trace.SpanEndOption) {
	code := status.Code(err)
	span.SetAttributes(attribute.String("rpc.response.status_code", CodeName(code)))
	if err != nil {
		reason := Reason(err)
		if reason != "" {
			span.SetAttributes(attribute.String("tandem.reason", reason))
		}
		switch code {
		case grpccodes.Unknown, grpccodes.DeadlineExceeded, grpccodes.Unimplemented, grpccodes.Internal, grpccodes.Unavailable, grpccodes.DataLoss:
			span.SetAttributes(attribute.String("error.type", CodeName(code)))
			span.SetStatus(codes.Error, reason)
		}
	}
	span.End(options...)
}

// CodeName is a code as gRPC's specification spells it, like "NOT_FOUND".
func CodeName(c grpccodes.Code) string {
	if name, is := code.Code_name[int32(c)]; is {
		return name
	}
	return "UNKNOWN"
}

// StartCall begins the client span of a call that the holder of ctx is about to
// make: its context sends the span along. EndSpan ends it.
func StartCall(ctx context.Context, tracer trace.Tracer, fullMethod string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	method := strings.TrimPrefix(fullMethod, "/") // as OpenTelemetry names it
	return tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...),
		trace.WithAttributes(attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", method)))
}
