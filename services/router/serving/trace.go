package router

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// Tracing says how requests are traced. The zero value traces none.
type Tracing struct {
	// Tracer makes the spans. Nil: none.
	Tracer trace.Tracer
	// Share of the requests to trace, 0 to 1, of those whose callers say nothing
	// about it; the sampled flag of a caller's traceparent counts more.
	Share float64
	// Tenant: spans may name the tenant.
	Tenant bool
}

// requestTrace is the spans of one request that is sampled; nil for others. Its
// methods do nothing for nil and are called by one goroutine at a time.
type requestTrace struct {
	tracer  trace.Tracer
	tenant  bool
	arrived time.Time
	ctx     context.Context // of the root
	root    trace.Span
	http    bool // the request came over HTTP

	decision *controlv1.Decision // the last one
	try      trace.Span          // nil while none is on
	tryCtx   context.Context
}

// traceRequest decides whether a request is sampled: as its caller did, or by
// chance. What is not sampled costs no more than the question.
func (s *Service) traceRequest(ctx context.Context, arrived time.Time, id string, q *inferencev1.GenerateRequest) *requestTrace {
	if s.deps.Tracing.Tracer == nil {
		return nil
	}
	parent := trace.SpanContextFromContext(ctx)
	if parent.IsValid() && !parent.IsSampled() || !parent.IsValid() && rand.Float64() >= s.deps.Tracing.Share {
		return nil
	}
	// Not the call's context: a request may outlive its call.
	t := &requestTrace{tracer: s.deps.Tracing.Tracer, tenant: s.deps.Tracing.Tenant, arrived: arrived}
	t.ctx, t.root = t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "tandem.generate",
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrived), trace.WithAttributes(
			attribute.String("gen_ai.operation.name", operation(ctx, q)),
			attribute.String("gen_ai.provider.name", "tandem"),
			attribute.String("tandem.request_id", id),
		))
	t.transport(ctx)
	return t
}

// planned adds what is asked. The prompt stays out, and so does the tenant
// unless it is allowed.
func (t *requestTrace) planned(p *plan) {
	if t == nil {
		return
	}
	t.root.SetAttributes(
		attribute.String("tandem.request_id", p.id), // which may have changed
		attribute.String("gen_ai.request.model", p.model.Spec.Name),
		attribute.Int("gen_ai.request.max_tokens", p.maxTokens),
		attribute.Float64("gen_ai.request.temperature", float64(p.sampling.GetTemperature())),
		attribute.Float64("gen_ai.request.top_p", float64(p.sampling.GetTopP())),
		attribute.Int("gen_ai.usage.input_tokens", len(p.tokens)),
		attribute.Int("tandem.priority", int(p.envelope.GetPriority())),
	)
	if t.tenant {
		t.root.SetAttributes(attribute.String("tandem.tenant", p.envelope.GetTenant()))
	}
}

// refused ends the trace of a request that never began.
func (t *requestTrace) refused(err error) {
	if t != nil {
		t.end(err)
	}
}

// decided keeps the choice of workers for the try that may come of it.
func (t *requestTrace) decided(d *controlv1.Decision) {
	if t != nil {
		t.decision = d
	}
}

// began starts the span of a try.
func (t *requestTrace) began(attempt, generated int) {
	if t == nil {
		return
	}
	t.tryCtx, t.try = t.tracer.Start(t.ctx, "attempt", trace.WithAttributes(
		attribute.Int("tandem.attempt", attempt),
		attribute.Int("tandem.generated_tokens", generated),
		attribute.String("tandem.mode", modeText(t.decision.GetMode())),
		attribute.String("tandem.reason", t.decision.GetReason()),
		attribute.String("tandem.prefill_worker", t.decision.GetPrefill()),
		attribute.String("tandem.decode_worker", t.decision.GetDecode()),
	))
	if t.decision.GetSource() != "" {
		t.try.SetAttributes(
			attribute.String("tandem.source", t.decision.GetSource()),
			attribute.Int("tandem.source_blocks", int(t.decision.GetSourceBlocks())),
		)
	}
}

// released ends the span of a try; err is what ended it, if it failed.
func (t *requestTrace) released(err error) {
	if t == nil || t.try == nil {
		return
	}
	if err != nil {
		t.try.SetStatus(codes.Error, codeName(err))
		if reason := rpc.Reason(err); reason != "" {
			t.try.SetAttributes(attribute.String("tandem.failure", reason))
		}
	}
	t.try.End()
	t.try = nil
}

// call starts the span of a worker stream, which the context then carries to the
// worker. The stream's goroutine ends it.
func (t *requestTrace) call(ctx context.Context, fullMethod string, worker fleet.Ref) (context.Context, trace.Span) {
	if t == nil || t.try == nil {
		return ctx, nil
	}
	return rpc.StartCall(trace.ContextWithSpan(ctx, t.try), t.tracer, fullMethod, attribute.String("tandem.worker", worker.ID))
}

// endCall ends the span of a worker stream.
func endCall(span trace.Span, err error) {
	if span != nil {
		rpc.EndSpan(span, err)
	}
}

// finished makes the spans of the stages and ends the root. Both take exactly
// what the response says: the root ends with the last token.
func (t *requestTrace) finished(f joining.Finish, err error) {
	if t == nil {
		return
	}
	if err != nil {
		t.end(err)
		return
	}
	for _, s := range stagesOf(f.Timings, f.Route.GetMode()) {
		from := t.arrived.Add(s.from)
		_, span := t.tracer.Start(t.ctx, s.name, trace.WithTimestamp(from))
		if s.name == "queue" && f.Timings.GetRetriedNs() > 0 {
			span.SetAttributes(attribute.Int64("tandem.retried_ns", f.Timings.GetRetriedNs()))
		}
		span.End(trace.WithTimestamp(from.Add(s.takes)))
	}
	x := f.Timings
	t.root.SetAttributes(
		attribute.StringSlice("gen_ai.response.finish_reasons", []string{finishText(f.Reason)}),
		attribute.Int("gen_ai.usage.output_tokens", int(f.Usage.GetCompletionTokens())),
		attribute.Int("gen_ai.usage.cache_read.input_tokens", int(f.Usage.GetCachedTokens())),
		attribute.Float64("gen_ai.response.time_to_first_chunk", time.Duration(x.GetTtftNs()).Seconds()),
		attribute.String("tandem.mode", modeText(f.Route.GetMode())),
		attribute.String("tandem.prefill_worker", f.Route.GetPrefill()),
		attribute.String("tandem.decode_worker", f.Route.GetDecode()),
		attribute.Int("tandem.retries", int(f.Route.GetRetries())),
		attribute.Int64("tandem.ttft_ns", x.GetTtftNs()),
		attribute.Int64("tandem.second_token_ns", x.GetSecondTokenNs()),
		attribute.Int64("tandem.tpot_ns", x.GetTpotNs()),
		attribute.Int64("tandem.transfer_ns", x.GetTransferNs()),
		attribute.Int64("tandem.transfer.bytes", int64(x.GetTransferBytes())),
		attribute.Int64("tandem.fetch_ns", x.GetFetchNs()),
		attribute.Int("tandem.fetched_tokens", f.FetchedTokens),
	)
	t.end(nil, trace.WithTimestamp(t.arrived.Add(time.Duration(x.GetTotalNs()))))
}

// finishText is a reason as other servers write it.
func finishText(reason inferencev1.FinishReason) string {
	return strings.ToLower(strings.TrimPrefix(reason.String(), "FINISH_REASON_"))
}

// modeText is a mode as clients write it.
func modeText(mode inferencev1.Mode) string {
	return strings.ToLower(strings.TrimPrefix(mode.String(), "MODE_"))
}

// stage is one stage of the latency budget, since the request's arrival.
type stage struct {
	name        string
	from, takes time.Duration
}

// stagesOf lays the stages of a budget one after another, those left out that
// took no time. The wait in the worker's own queue, which queue_ns contains, is
// a stage of its own where it lies: so "queue" and "prefill_queue" together are
// queue_ns.
func stagesOf(t *inferencev1.Timings, mode inferencev1.Mode) []stage {
	own := t.GetPrefillQueueNs()
	all := []struct {
		name string
		ns   int64
	}{
		{"tokenize", t.GetTokenizeNs()},
		{"queue", t.GetQueueNs() - own},
		{"decide", t.GetDecideNs()},
		{"reserve", t.GetReserveNs()},
		{"prefill_queue", own},
		{"prefill", t.GetPrefillNs()},
		{"transfer_exposed", t.GetTransferExposedNs()},
		{"decode", t.GetDecodeNs()},
	}
	if mode != inferencev1.Mode_MODE_DISAGGREGATED {
		// The worker reserves when its queue lets the sequence go.
		all[3], all[4] = all[4], all[3]
	}
	stages := make([]stage, 0, len(all))
	at := time.Duration(0)
	for _, s := range all {
		if s.ns > 0 {
			stages = append(stages, stage{s.name, at, time.Duration(s.ns)})
			at += time.Duration(s.ns)
		}
	}
	return stages
}
