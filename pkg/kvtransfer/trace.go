package kvtransfer

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// errCancelled is the outcome of a transfer cancelled by its reservation's owner.
var errCancelled = errors.New("cancelled by its owner")

// traceOpen starts the span of an accepted transfer, as a child of the sender's. message is
// its Open. Requires r.loop.
func (r *Receiver) traceOpen(message *kvtransferv1.SenderMessage) {
	open := message.GetOpen()
	if r.cfg.Tracer == nil || open.GetTraceparent() == "" {
		return
	}
	parent := rpc.ParseTraceParent(open.GetTraceparent())
	if !parent.IsSampled() {
		return
	}
	_, span := r.cfg.Tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "receive",
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("tandem.request_id", open.GetRequestId())))
	if r.spans == nil {
		r.spans = make(map[uint64]trace.Span)
	}
	r.spans[open.GetTransferId()] = span
}

// traceEnd ends the span of a transfer, if it has one. The span lasts from acceptance to
// the end. Requires r.loop.
func (r *Receiver) traceEnd(id, bytes uint64, err error) {
	span := r.spans[id]
	if span == nil {
		return
	}
	delete(r.spans, id)
	outcome, failed := outcomeOf(err)
	span.SetAttributes(attribute.String("tandem.transfer.outcome", outcome))
	if failed {
		span.SetStatus(codes.Error, outcome)
	} else if err == nil {
		span.SetAttributes(attribute.Int64("tandem.transfer.bytes", int64(bytes)))
	}
	span.End()
}

// outcomeOf names an outcome in one word and reports whether it is a failure.
func outcomeOf(err error) (outcome string, failed bool) {
	var failure *FailedError
	var aborted *AbortedError
	switch {
	case err == nil:
		return "committed", false
	case errors.Is(err, errCancelled):
		return "cancelled", false
	case errors.As(err, &failure):
		return api.Name(failure.Reason), true
	case errors.As(err, &aborted):
		return "aborted_" + api.Name(aborted.Reason), false
	}
	return "broken", true
}
