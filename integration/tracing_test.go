package integration_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

// keptSpans is an exporter that keeps what it gets.
type keptSpans struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
}

func (k *keptSpans) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spans = append(k.spans, spans...)
	return nil
}

func (k *keptSpans) Shutdown(context.Context) error { return nil }

// tracedMesh is a mesh that traces everything, in chunks of 64 tokens.
func tracedMesh(t *testing.T) (*clustertest.InProcess, *keptSpans) {
	t.Helper()
	kept := &keptSpans{}
	return clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Engine.Name = engines.Simulated
		o.Prefill.ChunkTokens, o.Decode.ChunkTokens = 64, 64
		o.Trace.Exporter, o.Trace.Share = kept, 1
	}), kept
}

// spansOf stops the mesh and returns the spans of one request, by service and
// name as in "tandem-router decide".
func spansOf(t *testing.T, m *clustertest.InProcess, kept *keptSpans, requestID string) map[string][]sdktrace.ReadOnlySpan {
	t.Helper()
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	var of trace.TraceID
	for _, span := range kept.spans {
		if span.Name() == "tandem.generate" && textOf(span.Attributes(), "tandem.request_id") == requestID {
			of = span.SpanContext().TraceID()
		}
	}
	if !of.IsValid() {
		t.Fatalf("request %s has no trace", requestID)
	}
	byName := map[string][]sdktrace.ReadOnlySpan{}
	for _, span := range kept.spans {
		if span.SpanContext().TraceID() == of {
			name := textOf(span.Resource().Attributes(), "service.name") + " " + span.Name()
			byName[name] = append(byName[name], span)
		}
	}
	return byName
}

func textOf(attributes []attribute.KeyValue, key attribute.Key) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

func numberOf(t *testing.T, span sdktrace.ReadOnlySpan, key attribute.Key) int64 {
	t.Helper()
	n, err := strconv.ParseInt(textOf(span.Attributes(), key), 10, 64)
	if err != nil {
		t.Errorf("%s of %s: %v", key, span.Name(), err)
	}
	return n
}

func takes(span sdktrace.ReadOnlySpan) int64 { return int64(span.EndTime().Sub(span.StartTime())) }

// routerKnows waits until the router has heard that a worker caches the prompt.
func routerKnows(t *testing.T, m *clustertest.Client, q *inferencev1.GenerateRequest) {
	t.Helper()
	until(t, "the KV event in the router", func() bool {
		again := generate(t, m, q)
		record, err := m.Control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: again.Accepted.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(record.GetDecisions()[0].GetCandidates(), func(c *controlv1.Candidate) bool { return c.GetCachedTokens() > 0 })
	})
}

// One trace goes through router, prefill worker, transfer, decode worker and
// NATS, each span below the one that caused it, and its times are those of the
// response.
func TestTraceOfADisaggregatedRequest(t *testing.T) {
	m, kept := tracedMesh(t)
	q := request(longPrompt(1), 70, 0, disaggregated)
	r := generate(t, m.Client, q)
	routerKnows(t, m.Client, q)
	spans, x := spansOf(t, m, kept, r.Accepted.GetRequestId()), r.Finished.GetTimings()
	one := func(name string) sdktrace.ReadOnlySpan {
		t.Helper()
		if len(spans[name]) != 1 {
			t.Fatalf("%d spans are called %s", len(spans[name]), name)
		}
		return spans[name][0]
	}
	below := map[string]string{
		"tandem-router attempt":                      "tandem-router tandem.generate",
		"tandem-router tandem.worker.v1.Prefill/Run": "tandem-router attempt",
		"tandem-router tandem.worker.v1.Decode/Run":  "tandem-router attempt",
		"tandem-prefill tandem.prefill":              "tandem-router tandem.worker.v1.Prefill/Run",
		"tandem-prefill open":                        "tandem-prefill tandem.prefill",
		"tandem-prefill queue":                       "tandem-prefill tandem.prefill",
		"tandem-prefill transfer":                    "tandem-prefill tandem.prefill",
		"tandem-decode receive":                      "tandem-prefill tandem.prefill",
		"tandem-decode tandem.decode":                "tandem-router tandem.worker.v1.Decode/Run",
		"tandem-decode reserve":                      "tandem-decode tandem.decode",
		"tandem-decode await_kv":                     "tandem-decode tandem.decode",
		"tandem-decode queue":                        "tandem-decode tandem.decode",
		"tandem-decode decode":                       "tandem-decode tandem.decode",
	}
	for child, parent := range below {
		if got := one(child).Parent().SpanID(); got != one(parent).SpanContext().SpanID() {
			t.Errorf("%s is below %v, not below %s", child, got, parent)
		}
		if one(child).StartTime().Before(one(parent).StartTime()) {
			t.Errorf("%s begins before %s", child, parent)
		}
	}
	root := one("tandem-router tandem.generate")
	var sum int64
	for name, want := range map[string]int64{
		"tokenize": x.GetTokenizeNs(), "queue": x.GetQueueNs() - x.GetPrefillQueueNs(), "decide": x.GetDecideNs(), "reserve": x.GetReserveNs(),
		"prefill_queue": x.GetPrefillQueueNs(), "prefill": x.GetPrefillNs(), "transfer_exposed": x.GetTransferExposedNs(), "decode": x.GetDecodeNs(),
	} {
		if want == 0 && len(spans["tandem-router "+name]) == 0 {
			continue
		}
		stage := one("tandem-router " + name)
		if takes(stage) != want || stage.Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("%s takes %d, the response says %d", name, takes(stage), want)
		}
		sum += takes(stage)
	}
	if sum != x.GetTotalNs() || takes(root) != x.GetTotalNs() {
		t.Errorf("the stages take %d, the root %d, the request %d", sum, takes(root), x.GetTotalNs())
	}
	for name, want := range map[attribute.Key]int64{
		"gen_ai.usage.input_tokens": int64(r.Finished.GetUsage().GetPromptTokens()), "gen_ai.usage.output_tokens": int64(len(r.Tokens)),
		"tandem.ttft_ns": x.GetTtftNs(), "tandem.tpot_ns": x.GetTpotNs(),
	} {
		if got := numberOf(t, root, name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}

	var compute, tokens int64
	for _, chunk := range spans["tandem-prefill chunk"] {
		if chunk.Parent().SpanID() != one("tandem-prefill tandem.prefill").SpanContext().SpanID() {
			t.Errorf("a chunk is below %v", chunk.Parent().SpanID())
		}
		compute += numberOf(t, chunk, "tandem.compute_ns")
		tokens += numberOf(t, chunk, "tandem.chunk.tokens")
	}
	prompt := int64(r.Finished.GetUsage().GetPromptTokens())
	if n := len(spans["tandem-prefill chunk"]); int64(n) != (prompt+63)/64 || tokens != prompt || compute != x.GetPrefillComputeNs() {
		t.Errorf("%d chunks of %d tokens took %d, the prompt of %d took %d", n, tokens, compute, prompt, x.GetPrefillComputeNs())
	}
	if transfer := one("tandem-prefill transfer"); takes(transfer) != x.GetTransferNs() || numberOf(t, transfer, "tandem.transfer.bytes") != int64(x.GetTransferBytes()) {
		t.Errorf("transfer takes %d, %v; the response says %d, %d bytes", takes(transfer), transfer.Attributes(), x.GetTransferNs(), x.GetTransferBytes())
	}
	if receive := one("tandem-decode receive"); textOf(receive.Attributes(), "tandem.transfer.outcome") != "committed" || numberOf(t, receive, "tandem.transfer.bytes") != int64(x.GetTransferBytes()) {
		t.Errorf("receive: %v", receive.Attributes())
	}
	decode := one("tandem-decode decode")
	if numberOf(t, decode, "tandem.compute_ns") != x.GetDecodeComputeNs() || numberOf(t, decode, "tandem.steps") != 69 || len(decode.Events()) != 2 {
		t.Errorf("decode: %v, %d events; the response says %d", decode.Attributes(), len(decode.Events()), x.GetDecodeComputeNs())
	}
	if len(spans["tandem-router process kv"]) == 0 {
		t.Error("no KV event of the request was traced")
	}
	workers := []trace.SpanID{one("tandem-prefill tandem.prefill").SpanContext().SpanID(), one("tandem-decode tandem.decode").SpanContext().SpanID()}
	for _, event := range spans["tandem-router process kv"] {
		if !slices.Contains(workers, event.Parent().SpanID()) || event.SpanKind() != trace.SpanKindConsumer {
			t.Errorf("a KV event is below %v, kind %v", event.Parent().SpanID(), event.SpanKind())
		}
	}
	for name, all := range spans {
		for _, span := range all {
			if span.Status().Code == codes.Error {
				t.Errorf("%s: %v", name, span.Status())
			}
			if strings.HasPrefix(name, "tandem-decode") && textOf(span.Resource().Attributes(), "service.instance.id") != "decode-1" {
				t.Errorf("%s is of %v", name, span.Resource())
			}
		}
	}
}

func TestTraceOfAnAggregatedRequest(t *testing.T) {
	m, kept := tracedMesh(t)
	r := generate(t, m.Client, request(longPrompt(2), 10, 0, aggregated))
	spans, x := spansOf(t, m, kept, r.Accepted.GetRequestId()), r.Finished.GetTimings()
	// Workers of both roles serve whole requests: one of either did this one.
	worker, other := "tandem-decode ", "tandem-prefill "
	if len(spans[other+"tandem.decode"]) != 0 {
		worker, other = other, worker
	}
	for name, count := range map[string]int{
		"tandem-router tandem.generate": 1, "tandem-router attempt": 1, "tandem-router tandem.worker.v1.Decode/Run": 1,
		worker + "tandem.decode": 1, worker + "queue": 1, worker + "decode": 1,
		worker + "chunk":        (int(r.Finished.GetUsage().GetPromptTokens()) + 63) / 64,
		other + "tandem.decode": 0, "tandem-prefill tandem.prefill": 0, "tandem-decode receive": 0, "tandem-decode await_kv": 0, "tandem-router transfer_exposed": 0,
	} {
		if len(spans[name]) != count {
			t.Fatalf("%d spans are called %s, want %d", len(spans[name]), name, count)
		}
	}
	if root := spans["tandem-router tandem.generate"][0]; takes(root) != x.GetTotalNs() {
		t.Errorf("the root takes %d, the request %d", takes(root), x.GetTotalNs())
	}
	decode := spans[worker+"decode"][0]
	if numberOf(t, decode, "tandem.steps") != 9 || numberOf(t, decode, "tandem.compute_ns") != x.GetDecodeComputeNs() {
		t.Errorf("decode: %v; the response says %d", decode.Attributes(), x.GetDecodeComputeNs())
	}
}

// A request whose client goes away leaves no span open: the trace has all of its
// parts, and nothing is left to wait for.
func TestTraceOfACancelledRequest(t *testing.T) {
	m, kept := tracedMesh(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id := ""
	stream, err := m.Inference.Generate(ctx, request(longPrompt(3), 1800, 0, disaggregated))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if accepted := event.GetAccepted(); accepted != nil {
			id = accepted.GetRequestId()
		}
	}
	cancel()
	m.AwaitIdle(t)
	spans := spansOf(t, m, kept, id)
	for _, name := range []string{
		"tandem-router tandem.generate", "tandem-router attempt", "tandem-router tandem.worker.v1.Decode/Run",
		"tandem-decode tandem.decode", "tandem-decode decode", "tandem-prefill tandem.prefill", "tandem-decode receive",
	} {
		if len(spans[name]) != 1 {
			t.Errorf("%d spans are called %s", len(spans[name]), name)
		}
	}
	if root := spans["tandem-router tandem.generate"]; len(root) == 1 && textOf(root[0].Attributes(), "rpc.response.status_code") != "CANCELLED" {
		t.Errorf("root: %v", root[0].Attributes())
	}
}
