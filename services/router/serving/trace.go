package serving

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/preprocess"
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
	status  func(error) int // of HTTP; nil: the request came over gRPC

	attempts map[int]trace.Span // those that run, by number
}

// traceRequest decides whether a request is sampled: as its caller did, or by
// chance. What is not sampled costs no more than the question.
func traceRequest(ctx context.Context, tracing Tracing, arrived time.Time, id string, c *Caller, q *inferencev1.GenerateRequest) *requestTrace {
	if tracing.Tracer == nil {
		return nil
	}
	parent := trace.SpanContextFromContext(ctx)
	if parent.IsValid() && !parent.IsSampled() || !parent.IsValid() && rand.Float64() >= tracing.Share {
		return nil
	}
	// Not the call's context: a request may outlive its call.
	t := &requestTrace{tracer: tracing.Tracer, tenant: tracing.Tenant, arrived: arrived, attempts: make(map[int]trace.Span)}
	t.ctx, t.root = t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), parent), "tandem.generate",
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrived), trace.WithAttributes(
			attribute.String("gen_ai.operation.name", operation(c, q)),
			attribute.String("gen_ai.provider.name", "tandem"),
			attribute.String("tandem.request_id", id),
		))
	t.transport(c)
	return t
}

// planned adds what is asked. The prompt stays out, and so does the tenant
// unless it is allowed.
func (t *requestTrace) planned(id string, p *preprocess.Plan) {
	if t == nil {
		return
	}
	t.root.SetAttributes(
		attribute.String("tandem.request_id", id), // which may have changed
		attribute.String("gen_ai.request.model", p.Model.Spec.Name),
		attribute.Int("gen_ai.request.max_tokens", p.MaxTokens),
		attribute.Float64("gen_ai.request.temperature", float64(p.Sampling.GetTemperature())),
		attribute.Float64("gen_ai.request.top_p", float64(p.Sampling.GetTopP())),
		attribute.Int("gen_ai.usage.input_tokens", len(p.Tokens)),
		attribute.Int("tandem.priority", int(p.Envelope.GetPriority())),
	)
	if t.tenant {
		t.root.SetAttributes(attribute.String("tandem.tenant", p.Envelope.GetTenant()))
	}
}

// began starts the span of an attempt, as it was decided.
func (t *requestTrace) began(attempt, generated int, d *controlv1.Decision) {
	if t == nil {
		return
	}
	_, span := t.tracer.Start(t.ctx, "attempt", trace.WithAttributes(
		attribute.Int("tandem.attempt", attempt),
		attribute.Int("tandem.generated_tokens", generated),
		attribute.String("tandem.mode", api.Name(d.GetMode())),
		attribute.String("tandem.reason", d.GetReason()),
		attribute.String("tandem.prefill_worker", d.GetPrefill()),
		attribute.String("tandem.decode_worker", d.GetDecode()),
	))
	if d.GetSource() != "" {
		span.SetAttributes(
			attribute.String("tandem.source", d.GetSource()),
			attribute.Int("tandem.source_blocks", int(d.GetSourceBlocks())),
		)
	}
	if d.GetHedge() {
		span.SetAttributes(attribute.Bool("tandem.hedge", true))
	}
	t.attempts[attempt] = span
}

// released ends the span of an attempt.
func (t *requestTrace) released(a joining.Release) {
	if t == nil || t.attempts[a.Attempt] == nil {
		return
	}
	span := t.attempts[a.Attempt]
	if a.Err != nil {
		span.SetStatus(codes.Error, rpc.CodeName(status.Code(a.Err)))
		if reason := rpc.Reason(a.Err); reason != "" {
			span.SetAttributes(attribute.String("tandem.failure", reason))
		}
	}
	if a.Late() {
		span.SetAttributes(attribute.Bool("tandem.lost", true))
	}
	span.End()
	delete(t.attempts, a.Attempt)
}

// allReleased ends the spans that are left.
func (t *requestTrace) allReleased() {
	if t == nil {
		return
	}
	for _, span := range t.attempts {
		span.End()
	}
	clear(t.attempts)
}

// call starts the span of a worker stream, which the context then carries to the
// worker. The stream's goroutine ends it.
func (t *requestTrace) call(ctx context.Context, fullMethod string, attempt int, worker routing.Ref) (context.Context, trace.Span) {
	if t == nil || t.attempts[attempt] == nil {
		return ctx, nil
	}
	return rpc.StartCall(trace.ContextWithSpan(ctx, t.attempts[attempt]), t.tracer, fullMethod, attribute.String("tandem.worker", worker.ID))
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
		span.End(trace.WithTimestamp(from.Add(s.takes)))
	}
	x := f.Timings
	t.root.SetAttributes(
		attribute.StringSlice("gen_ai.response.finish_reasons", []string{api.Name(f.Reason)}),
		attribute.Int("gen_ai.usage.output_tokens", int(f.Usage.GetCompletionTokens())),
		attribute.Int("gen_ai.usage.cache_read.input_tokens", int(f.Usage.GetCachedTokens())),
		attribute.Float64("gen_ai.response.time_to_first_chunk", time.Duration(x.GetTtftNs()).Seconds()),
		attribute.String("tandem.mode", api.Name(f.Route.GetMode())),
		attribute.String("tandem.prefill_worker", f.Route.GetPrefill()),
		attribute.String("tandem.decode_worker", f.Route.GetDecode()),
		attribute.Int("tandem.retries", int(f.Route.GetRetries())),
		attribute.Bool("tandem.hedged", f.Route.GetHedged()),
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
	var stages []stage
	at := time.Duration(0)
	add := func(name string, takes time.Duration) {
		if takes > 0 {
			stages = append(stages, stage{name, at, takes})
			at += takes
		}
	}
	own := time.Duration(t.GetPrefillQueueNs())
	waits := api.StageReserve // the worker reserves when its queue lets the sequence go
	if mode == inferencev1.Mode_MODE_DISAGGREGATED {
		waits = api.StagePrefill
	}
	for i, takes := range api.StagesOf(t) {
		switch s := api.Stage(i); s {
		case api.StageQueue:
			takes -= own
		case waits:
			add("prefill_queue", own)
		}
		add(api.Stage(i).String(), takes)
	}
	return stages
}

// operation is what a request asks for, in the words of OpenTelemetry's
// conventions for generative AI. What came over HTTP may have its prompt in tokens
// already.
func operation(c *Caller, q *inferencev1.GenerateRequest) string {
	if q.GetConversation() != nil || c.Chat {
		return "chat"
	}
	return "text_completion"
}

// transport adds how the request came.
func (t *requestTrace) transport(c *Caller) {
	if t.status = c.HTTPStatus; t.status == nil {
		t.root.SetAttributes(
			attribute.String("rpc.system.name", "grpc"),
			attribute.String("rpc.method", strings.TrimPrefix(inferencev1.Inference_Generate_FullMethodName, "/")),
		)
		return
	}
	t.root.SetAttributes(attribute.String("http.request.method", http.MethodPost), attribute.String("http.route", c.Route))
}

// end ends the root with what the client was told. As rpc.EndSpan has it, what
// the client did is no error of the span.
func (t *requestTrace) end(err error, options ...trace.SpanEndOption) {
	if t == nil {
		return
	}
	if t.status == nil {
		rpc.EndSpan(t.root, err, options...)
		return
	}
	status := http.StatusOK
	if err != nil {
		status = t.status(err)
		reason := rpc.Reason(err)
		if reason != "" {
			t.root.SetAttributes(attribute.String("tandem.reason", reason))
		}
		if status >= http.StatusInternalServerError {
			t.root.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
			t.root.SetStatus(codes.Error, reason)
		}
	}
	t.root.SetAttributes(attribute.Int("http.response.status_code", status))
	t.root.End(options...)
}
