package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
)

// traced is a context whose calls carry a caller's traceparent.
func traced(ctx context.Context, flags string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+callerTrace+"-"+callerSpan+"-"+flags)
}

// ended is the spans that have ended, after a check that no other was started and
// that all belong to the caller's trace.
func (m *mesh) ended() map[string][]sdktrace.ReadOnlySpan {
	m.t.Helper()
	if started, ended := len(m.spans.Started()), len(m.spans.Ended()); started != ended {
		m.t.Errorf("%d spans began, %d ended", started, ended)
	}
	byName := map[string][]sdktrace.ReadOnlySpan{}
	for _, span := range m.spans.Ended() {
		if span.SpanContext().TraceID().String() != callerTrace {
			m.t.Errorf("span %s is of trace %s", span.Name(), span.SpanContext().TraceID())
		}
		byName[span.Name()] = append(byName[span.Name()], span)
	}
	return byName
}

// the is the one span of a name.
func the(t *testing.T, spans map[string][]sdktrace.ReadOnlySpan, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	if len(spans[name]) != 1 {
		t.Fatalf("%d spans are called %s", len(spans[name]), name)
	}
	return spans[name][0]
}

func attributeOf(span sdktrace.ReadOnlySpan, key string) string {
	for _, a := range span.Attributes() {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}

func length(span sdktrace.ReadOnlySpan) int64 { return int64(span.EndTime().Sub(span.StartTime())) }

// parents notes the span that each kind of worker was called from.
type parents struct {
	mu    sync.Mutex
	spans map[string][]trace.SpanContext
}

func (p *parents) hook(ctx context.Context, w *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
	if stage == workertest.Reserve || stage == workertest.Start || stage == workertest.Admit {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.spans == nil {
			p.spans = map[string][]trace.SpanContext{}
		}
		p.spans[w.Record.GetId()] = append(p.spans[w.Record.GetId()], trace.SpanContextFromContext(ctx))
	}
	return nil
}

// The spans of the stages take to the nanosecond what the response says, and
// follow one another from the request's arrival to its end.
func TestSpansAreTheBudget(t *testing.T) {
	for _, mode := range []inferencev1.Mode{dis, agg} {
		t.Run(mode.String(), func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				var called parents
				m.start(called.hook, prefillRecord("p1"), decodeRecord("d1"))
				r := m.generate(traced(t.Context(), "01"), ask(mode, 100))
				if r.err != nil {
					t.Fatal(r.err)
				}
				m.quiet()
				spans, x := m.ended(), r.finished.GetTimings()
				root := the(t, spans, "tandem.generate")
				if root.Parent().SpanID().String() != callerSpan || !root.Parent().IsRemote() || root.SpanKind() != trace.SpanKindServer {
					t.Errorf("the root's parent is %v, its kind %v", root.Parent(), root.SpanKind())
				}
				if length(root) != x.GetTotalNs() || x.GetTotalNs() == 0 {
					t.Errorf("the root takes %d, the request %d", length(root), x.GetTotalNs())
				}
				var stages []sdktrace.ReadOnlySpan
				for name, want := range map[string]int64{
					"tokenize": x.GetTokenizeNs(), "queue": x.GetQueueNs() - x.GetPrefillQueueNs(), "decide": x.GetDecideNs(), "reserve": x.GetReserveNs(),
					"prefill_queue": x.GetPrefillQueueNs(), "prefill": x.GetPrefillNs(), "transfer_exposed": x.GetTransferExposedNs(), "decode": x.GetDecodeNs(),
				} {
					if want == 0 && len(spans[name]) == 0 {
						continue
					}
					stage := the(t, spans, name)
					if length(stage) != want || stage.Parent().SpanID() != root.SpanContext().SpanID() {
						t.Errorf("%s takes %d below %v, want %d below the root", name, length(stage), stage.Parent().SpanID(), want)
					}
					stages = append(stages, stage)
				}
				slices.SortFunc(stages, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
				at, sum := root.StartTime(), int64(0)
				for _, s := range stages {
					if !s.StartTime().Equal(at) {
						t.Errorf("%s begins %s after the stage before it ended", s.Name(), s.StartTime().Sub(at))
					}
					at, sum = s.EndTime(), sum+length(s)
				}
				if sum != x.GetTotalNs() || !at.Equal(root.EndTime()) {
					t.Errorf("the stages take %d of %d", sum, x.GetTotalNs())
				}
				attempt := the(t, spans, "attempt")
				if attempt.Parent().SpanID() != root.SpanContext().SpanID() {
					t.Errorf("the attempt is below %v", attempt.Parent().SpanID())
				}
				calls := map[string]string{"d1": "tandem.worker.v1.Decode/Run", "p1": "tandem.worker.v1.Prefill/Run"}
				if mode == agg {
					delete(calls, "p1")
				}
				for id, name := range calls {
					call := the(t, spans, name)
					if call.Parent().SpanID() != attempt.SpanContext().SpanID() || call.SpanKind() != trace.SpanKindClient || attributeOf(call, "tandem.worker") != id {
						t.Errorf("call %s is below %v, attributes %v", name, call.Parent().SpanID(), call.Attributes())
					}
					for _, parent := range called.spans[id] {
						if parent.SpanID() != call.SpanContext().SpanID() || !parent.IsSampled() {
							t.Errorf("%s was called from %v", id, parent)
						}
					}
					if len(called.spans[id]) == 0 {
						t.Errorf("%s was not called", id)
					}
				}
			})
		})
	}
}

// What a caller does not want traced is not, nor what nobody decided about at a
// share of 0; and the workers hear nothing of it.
func TestUnsampled(t *testing.T) {
	for name, prepare := range map[string]func(context.Context) context.Context{
		"caller says no": func(ctx context.Context) context.Context { return traced(ctx, "00") },
		"nobody asked":   func(ctx context.Context) context.Context { return ctx },
		"malformed": func(ctx context.Context) context.Context {
			return metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+callerTrace+"-0000000000000000-01")
		},
		"twice": func(ctx context.Context) context.Context { return traced(traced(ctx, "01"), "01") },
	} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				var called parents
				m.start(called.hook, prefillRecord("p1"), decodeRecord("d1"))
				if r := m.generate(prepare(t.Context()), ask(dis, 100)); r.err != nil {
					t.Fatal(r.err)
				}
				m.quiet()
				if n := len(m.spans.Started()); n != 0 {
					t.Errorf("%d spans", n)
				}
				for id, spans := range called.spans {
					for _, span := range spans {
						if span.IsValid() {
							t.Errorf("%s was called from %v", id, span)
						}
					}
				}
			})
		})
	}
}

func TestRetriesAreAttempts(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(failAt("d1", workertest.Token, 9, dies), prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
		r := m.generate(traced(t.Context(), "01"), ask(dis, 100))
		if r.err != nil || r.finished.GetRoute().GetRetries() != 1 {
			t.Fatalf("route %v, error %v", r.finished.GetRoute(), r.err)
		}
		m.quiet()
		spans := m.ended()
		attempts := spans["attempt"]
		if len(attempts) != 2 {
			t.Fatalf("%d attempts", len(attempts))
		}
		slices.SortFunc(attempts, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
		first, second := attempts[0], attempts[1]
		if first.Status().Code != codes.Error || attributeOf(first, "tandem.decode_worker") != "d1" || attributeOf(first, "tandem.attempt") != "0" {
			t.Errorf("first attempt: %v, %v", first.Status(), first.Attributes())
		}
		if second.Status().Code != codes.Unset || attributeOf(second, "tandem.decode_worker") != "d2" || attributeOf(second, "tandem.generated_tokens") != fmt.Sprint(9) {
			t.Errorf("second attempt: %v, %v", second.Status(), second.Attributes())
		}
		x := r.finished.GetTimings()
		if retried := the(t, spans, "retried"); length(retried) != x.GetRetriedNs() || x.GetRetriedNs() == 0 {
			t.Errorf("failed tries take %d, and %d by the response", length(retried), x.GetRetriedNs())
		}
		if root := the(t, spans, "tandem.generate"); length(root) != x.GetTotalNs() || attributeOf(root, "tandem.retries") != "1" {
			t.Errorf("root takes %d of %d: %v", length(root), x.GetTotalNs(), root.Attributes())
		}
	})
}

// However a request ends, all its spans do.
func TestSpansOfWhatEndsBadly(t *testing.T) {
	for _, test := range []struct {
		name   string
		run    func(ctx context.Context, m *mesh) error
		code   string
		status codes.Code
	}{
		{"client gone", func(ctx context.Context, m *mesh) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			m.start(failAt("d1", workertest.Token, 5, func(context.Context, *workertest.Worker) error { cancel(); return nil }), prefillRecord("p1"), decodeRecord("d1"))
			return m.generate(ctx, ask(dis, 100)).err
		}, "CANCELLED", codes.Unset},
		{"deadline", func(ctx context.Context, m *mesh) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			m.start(failAt("d1", workertest.Token, 5, hangs), prefillRecord("p1"), decodeRecord("d1"))
			return m.generate(ctx, ask(dis, 100)).err
		}, "DEADLINE_EXCEEDED", codes.Error},
		{"no workers", func(ctx context.Context, m *mesh) error {
			return m.generate(ctx, ask(dis, 100)).err
		}, "UNAVAILABLE", codes.Error},
		{"refused", func(ctx context.Context, m *mesh) error {
			return m.generate(ctx, ask(dis, 2*window)).err
		}, "INVALID_ARGUMENT", codes.Unset},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				if err := test.run(traced(t.Context(), "01"), m); err == nil {
					t.Fatal("it went well")
				}
				m.quiet()
				synctest.Wait()
				root := the(t, m.ended(), "tandem.generate")
				// The deadline of the call can pass as one of its caller.
				if code := attributeOf(root, "rpc.response.status_code"); code != test.code && !(test.name == "deadline" && code == "CANCELLED") {
					t.Errorf("code %s, want %s", code, test.code)
				} else if code == test.code && root.Status().Code != test.status {
					t.Errorf("status %v", root.Status())
				}
			})
		})
	}
}

// Spans say nothing of what a client wrote.
func TestSpansKeepTheirSecrets(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		const secret = "hushhush"
		good := &inferencev1.GenerateRequest{
			Input: &inferencev1.GenerateRequest_Prompt{Prompt: secret}, Tenant: secret, CacheSalt: secret, Stop: []string{secret}, Mode: dis,
		}
		bad := &inferencev1.GenerateRequest{Model: secret, Input: good.GetInput()}
		ctx := metadata.AppendToOutgoingContext(traced(t.Context(), "01"), api.HeaderRequestID, "an-id")
		if r := m.generate(ctx, good); r.err != nil {
			t.Fatal(r.err)
		}
		if r := m.generate(traced(t.Context(), "01"), bad); r.err == nil {
			t.Fatal("it went well")
		}
		m.quiet()
		for name, spans := range m.ended() {
			for _, span := range spans {
				text := fmt.Sprint(span.Attributes(), span.Status(), span.Events())
				if strings.Contains(text, secret) || strings.Contains(text, "Once upon") {
					t.Errorf("%s: %s", name, text)
				}
			}
		}
		var ids []string // in whatever order the two ended
		for _, root := range m.ended()["tandem.generate"] {
			ids = append(ids, attributeOf(root, "tandem.request_id"))
		}
		if len(ids) != 2 || !slices.Contains(ids, "an-id") {
			t.Errorf("request ids %q", ids)
		}
	})
}
