package signals

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// message is the signal as NATS sends it. Servers that know no headers, older
// than 2.2, get none.
func (c *Conn) message(signal outgoing) *nats.Msg {
	m := &nats.Msg{Subject: signal.subject, Data: signal.payload}
	if signal.traceParent != "" && c.nats.HeadersSupported() {
		m.Header = nats.Header{api.HeaderTraceParent: []string{signal.traceParent}}
	}
	return m
}

// startSpan begins the span of taking in a signal, if a sampled request caused
// it; else nil. The span is part of that request's trace.
func (c *Conn) startSpan(kind string, m *nats.Msg) trace.Span {
	if c.tracer == nil || len(m.Header) == 0 {
		return nil
	}
	cause := rpc.ParseTraceParent(m.Header.Get(api.HeaderTraceParent))
	if !cause.IsSampled() {
		return nil
	}
	_, span := c.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), cause), "process "+kind,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "nats"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", m.Subject),
			attribute.Int("messaging.message.body.size", len(m.Data)),
		))
	return span
}
