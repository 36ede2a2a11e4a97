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

// errCancelled is how a transfer ended that its own reservation's owner ended.
var errCancelled = errors.New("cancelled by its owner")

// traceOpen begins the span of a transfer that message, which the core accepted,
// opened. It is part of the sender's trace. r.mu is held.
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

// traceEnd ends the span of a transfer, if it has one that is open: it covers
// the transfer from its acceptance to its end, however that came. r.mu is held.
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

// outcomeOf names an end in a word and says whether something went wrong.
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
