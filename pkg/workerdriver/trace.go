package workerdriver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// tokenEvery is how many tokens lie between two events of a decode span.
const tokenEvery = 64

// Trace makes the spans of one sequence on a worker: one for the call that
// brought it and, below that, one for each thing that became of it. They are
// made where the sequence is sampled only; else the *Trace is nil, and callers
// ask before they call, so that nothing is built for it.
//
// Its methods are safe for concurrent use.
type Trace struct {
	tracer trace.Tracer
	ctx    context.Context // of the call's span
	call   trace.Span

	mu      sync.Mutex
	mark    time.Time  // where the last phase ended
	chunks  int        // of the prompt, so far
	decode  trace.Span // nil before the first step of decoding, and after the last
	steps   int
	batches int // sequences in those steps together
}

// StartTrace begins the span of a call whose context has a sampled span, and
// returns the context to go on with. Otherwise, or without a tracer, the *Trace
// is nil and the context as it was. End must be called.
func StartTrace(ctx context.Context, tracer trace.Tracer, name, fullMethod string, task *workerv1.Task) (context.Context, *Trace) {
	if tracer == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, nil
	}
	began := time.Now()
	ctx, call := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began), trace.WithAttributes(
		attribute.String("rpc.system.name", "grpc"),
		attribute.String("rpc.method", fullMethod[1:]),
		attribute.String("tandem.request_id", task.GetEnvelope().GetRequestId()),
		attribute.Int64("tandem.attempt", int64(task.GetEnvelope().GetAttempt())),
		attribute.String("gen_ai.request.model", task.GetModel()),
		attribute.Int("tandem.prompt.tokens", len(task.GetTokenIds())),
	))
	return ctx, &Trace{tracer: tracer, ctx: ctx, call: call, mark: began}
}

// End ends the call's span, and what is still open below it, with the call's
// outcome.
func (t *Trace) End(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decode != nil && rpc.Reason(err) == api.ReasonEngineFailed {
		t.decode.SetStatus(codes.Error, api.ReasonEngineFailed)
	}
	t.endDecode()
	rpc.EndSpan(t.call, err)
}

// Opened ends the span open: the receiver has let the transfer of the sequence's
// KV begin.
func (t *Trace) Opened() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase("open", time.Now())
}

// Fetched ends the span fetch: what a block store had was fetched, or not.
func (t *Trace) Fetched(tokens int, bytes uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.span("fetch", t.mark, now, err, attribute.Int("tandem.fetch.tokens", tokens), attribute.Int64("tandem.transfer.bytes", int64(bytes)))
	t.mark = now
}

// submitted says that the sequence is the scheduler's from now on.
func (t *Trace) submitted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mark = time.Now()
}

// phase makes a span from the last mark on; mu is held.
func (t *Trace) phase(name string, until time.Time, attributes ...attribute.KeyValue) {
	t.span(name, t.mark, until, nil, attributes...)
	t.mark = until
}

// span makes a span that is over.
func (t *Trace) span(name string, from, until time.Time, err error, attributes ...attribute.KeyValue) {
	_, span := t.tracer.Start(t.ctx, name, trace.WithTimestamp(from), trace.WithAttributes(attributes...))
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(until))
}

// Reserved ends the span reserve: the sequence has its blocks.
func (t *Trace) Reserved(blocks, cachedTokens int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase("reserve", time.Now(), attribute.Int("tandem.kv.blocks", blocks), attribute.Int("tandem.cached_tokens", cachedTokens))
}

// Arrived ends the span await_kv: the sequence's KV is in its blocks.
func (t *Trace) Arrived(bytes uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase("await_kv", time.Now(), attribute.Int64("tandem.transfer.bytes", int64(bytes)))
}

// Started ends the span queue, which takes as long as the scheduler says.
func (t *Trace) Started(waited time.Duration, cachedTokens int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase("queue", t.mark.Add(waited), attribute.Int("tandem.cached_tokens", cachedTokens))
}

// Token says that a token was sampled. The first one of a decoding sequence, and
// every 64th, is an event of its span.
func (t *Trace) Token(offset int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.decode == nil
	if first {
		// A sequence that received its KV decodes since it started, one whose prompt
		// was computed here since that was done.
		if t.chunks > 0 {
			t.mark = time.Now()
		}
		_, t.decode = t.tracer.Start(t.ctx, "decode", trace.WithTimestamp(t.mark))
	}
	if first || offset%tokenEvery == 0 {
		t.decode.AddEvent("token", trace.WithAttributes(attribute.Int("tandem.token.offset", offset)))
	}
}

// Finished ends the span decode of a sequence that ended well.
func (t *Trace) Finished(compute time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decode == nil {
		return
	}
	t.decode.SetAttributes(attribute.Int64("tandem.compute_ns", compute.Nanoseconds()))
	t.endDecode()
}

// endDecode ends the span decode if it is open; mu is held.
func (t *Trace) endDecode() {
	if t.decode == nil {
		return
	}
	t.decode.SetAttributes(attribute.Int("tandem.steps", t.steps))
	if t.steps > 0 {
		t.decode.SetAttributes(attribute.Float64("tandem.batch.mean_sequences", float64(t.batches)/float64(t.steps)))
	}
	t.decode.End()
	t.decode = nil
}

// Transferred makes the span transfer, from the first byte offered to the last
// acknowledged.
func (t *Trace) Transferred(from, until time.Time, bytes uint64, messages int, err error) {
	t.span("transfer", from, until, err, attribute.Int64("tandem.transfer.bytes", int64(bytes)), attribute.Int("tandem.transfer.messages", messages))
}

// step takes in one step that the sequence was part of.
func (t *Trace) step(s *tracedStep, run scheduler.RunStep, part int, until time.Time, compute time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !run.Parts[part].Prompt {
		t.steps++
		t.batches += len(run.Parts)
		return
	}
	batchTokens := 0
	for _, sequence := range run.Batch.Sequences {
		batchTokens += len(sequence.Tokens)
	}
	own := run.Batch.Sequences[part]
	t.span("chunk", s.began, until, err,
		attribute.Int("tandem.chunk.number", t.chunks),
		attribute.Int("tandem.chunk.start", own.Start),
		attribute.Int("tandem.chunk.tokens", len(own.Tokens)),
		attribute.Int("tandem.batch.sequences", len(run.Parts)),
		attribute.Int("tandem.batch.tokens", batchTokens),
		attribute.Int64("tandem.compute_ns", compute.Nanoseconds()))
	t.chunks++
}

// traces are a driver's traced sequences, under its lock but for count.
type traces struct {
	// count is how many there are, for the engine's path: with none it takes no
	// lock and no time.
	count      atomic.Int32
	bySequence map[scheduler.SequenceID]*Trace
	// cause is the span of the sequence whose event is being handled.
	cause trace.SpanContext
}

func (t *traces) remove(id scheduler.SequenceID) {
	if _, traced := t.bySequence[id]; traced {
		delete(t.bySequence, id)
		t.count.Add(-1)
	}
}

// tracedStep is a step with traced sequences in it.
type tracedStep struct {
	began time.Time
	parts []*Trace // by part, nil for those that are not traced
	first scheduler.SequenceID
}

// Trace lets the steps of a sequence be traced from its Submit on. Its id came
// from Reserve.
func (d *Driver) Trace(id scheduler.SequenceID, t *Trace) {
	d.loop.Lock()
	defer d.loop.Unlock()
	if d.traces.bySequence == nil {
		d.traces.bySequence = make(map[scheduler.SequenceID]*Trace)
	}
	d.traces.bySequence[id] = t
	d.traces.count.Add(1)
}

// stepBegins is nil if no sequence of the step is traced.
func (d *Driver) stepBegins(run scheduler.RunStep) *tracedStep {
	if d.traces.count.Load() == 0 {
		return nil
	}
	d.loop.Lock()
	defer d.loop.Unlock()
	return d.stepBeginsLocked(run)
}

// stepBeginsLocked is stepBegins under d.loop.
func (d *Driver) stepBeginsLocked(run scheduler.RunStep) *tracedStep {
	if d.traces.count.Load() == 0 {
		return nil
	}
	var step *tracedStep
	for i, part := range run.Parts {
		t := d.traces.bySequence[part.ID]
		if t == nil {
			continue
		}
		if step == nil {
			step = &tracedStep{began: time.Now(), parts: make([]*Trace, len(run.Parts)), first: part.ID}
		}
		step.parts[i] = t
	}
	return step
}

// ended tells the traced sequences of a step.
func (s *tracedStep) ended(run scheduler.RunStep, compute time.Duration, err error) {
	if s == nil {
		return
	}
	until := time.Now()
	for i, t := range s.parts {
		if t != nil {
			t.step(s, run, i, until, compute, err)
		}
	}
}

// sequence is the traced sequence that the step's effects are put down to; 0 if
// there is none.
func (s *tracedStep) sequence() scheduler.SequenceID {
	if s == nil {
		return 0
	}
	return s.first
}

// stepDone is Handle for the end of a step, of which id is a sequence.
func (d *Driver) stepDone(id scheduler.SequenceID, done scheduler.StepDone) {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.cause(id)
	d.stepEnded = true
	give(d, (*worker.Worker).HandleStepDone, done)
	d.stepEnded = false
	d.cause(0)
}

// cause has what happens put down to a sequence, if it is traced; 0: to none. The loop is
// locked.
func (d *Driver) cause(id scheduler.SequenceID) {
	d.traces.cause = trace.SpanContext{}
	if t := d.traces.bySequence[id]; t != nil {
		d.traces.cause = t.call.SpanContext()
	}
}
