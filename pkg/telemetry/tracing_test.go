package telemetry_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

var quiet = slog.New(slog.DiscardHandler)

func TestTracingConfig(t *testing.T) {
	for _, c := range []struct{ endpoint, wrong string }{
		{"", ""}, {"none", ""}, {"127.0.0.1:4317", ""}, {"collector.example:4317", ""}, {"http://127.0.0.1:4317", ""}, {"https://collector:4317/", ""},
		{"4317", "neither HOST:PORT"}, {":4317", "neither HOST:PORT"}, {"collector", "neither HOST:PORT"},
		{"ftp://collector:4317", "neither HOST:PORT"}, {"http://", "neither HOST:PORT"}, {"http://collector:4317/v1/traces", "neither HOST:PORT"},
	} {
		err := telemetry.TracingConfig{Endpoint: c.endpoint}.Validate()
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%q: %v", c.endpoint, err)
		}
	}
	if err := (telemetry.TracingConfig{File: "x", FileBytes: 1}).Validate(); err == nil {
		t.Error("a file of one byte is taken")
	}
}

func TestTracingFromTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		name        string
		config      telemetry.TracingConfig
		environment map[string]string
		endpoint    string
	}{
		{"nothing", telemetry.TracingConfig{}, nil, ""},
		{"endpoint", telemetry.TracingConfig{}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "http://a:1"},
		{"traces first", telemetry.TracingConfig{}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1"}, "http://b:1"},
		{"flag first", telemetry.TracingConfig{Endpoint: "c:1"}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, "c:1"},
		{"a file suffices", telemetry.TracingConfig{File: "f"}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, ""},
		{"none", telemetry.TracingConfig{Endpoint: "none"}, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1"}, ""},
		{"disabled", telemetry.TracingConfig{Endpoint: "c:1"}, map[string]string{"OTEL_SDK_DISABLED": "TRUE"}, ""},
	} {
		got := c.config.FromEnvironment(func(name string) string { return c.environment[name] })
		if got.Endpoint != c.endpoint {
			t.Errorf("%s: endpoint %q, want %q", c.name, got.Endpoint, c.endpoint)
		}
	}
}

func TestTracingConfigNamesTheVariable(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		environment := func(asked string) string {
			if asked == name {
				return "collector"
			}
			return ""
		}
		err := telemetry.TracingConfig{}.FromEnvironment(environment).Validate()
		if err == nil || !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s: %v", name, err)
		}
		if err := (telemetry.TracingConfig{Endpoint: "a"}).FromEnvironment(environment).Validate(); err == nil || strings.Contains(err.Error(), name) {
			t.Errorf("an endpoint of a flag beside %s: %v", name, err)
		}
	}
}

func TestNoTracing(t *testing.T) {
	tracing, err := telemetry.NewTracing(telemetry.TracingConfig{}, quiet, nil)
	if tracing != nil || err != nil {
		t.Fatalf("%v, %v", tracing, err)
	}
	if tracer := tracing.Tracer("tandem-router", "router-1"); tracer != nil {
		t.Errorf("there is a tracer: %v", tracer)
	}
	if err := tracing.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// sink is a collector that keeps what it gets.
type sink struct {
	v1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names []string // service/instance/span
}

func (s *sink) Export(_ context.Context, q *v1.ExportTraceServiceRequest) (*v1.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range q.GetResourceSpans() {
		who := map[string]string{}
		for _, a := range resource.GetResource().GetAttributes() {
			who[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.names = append(s.names, who["service.name"]+"/"+who["service.instance.id"]+"/"+span.GetName())
			}
		}
	}
	return &v1.ExportTraceServiceResponse{}, nil
}

// Spans of each part reach the collector under the part's own name.
func TestSpansReachTheCollector(t *testing.T) {
	defer goleak.VerifyNone(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, got := grpc.NewServer(), &sink{}
	v1.RegisterTraceServiceServer(server, got)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()

	registry := prometheus.NewRegistry()
	tracing, err := telemetry.NewTracing(telemetry.TracingConfig{Endpoint: listener.Addr().String()}, quiet, registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][2]string{{"tandem-router", "router-1"}, {"tandem-decode", "decode-1"}} {
		_, span := tracing.Tracer(part[0], part[1]).Start(t.Context(), "work")
		span.End()
	}
	if err := tracing.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	slices.Sort(got.names)
	if fmt.Sprint(got.names) != "[tandem-decode/decode-1/work tandem-router/router-1/work]" {
		t.Errorf("got %v", got.names)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP tandem_trace_spans_total Spans of sampled requests given to an exporter, by whether it took them.
# TYPE tandem_trace_spans_total counter
tandem_trace_spans_total{exporter="otlp",result="sent"} 2
# HELP tandem_trace_spans_made_total Spans of sampled requests that ended, by the part that made them.
# TYPE tandem_trace_spans_made_total counter
tandem_trace_spans_made_total{service="tandem-decode"} 1
tandem_trace_spans_made_total{service="tandem-router"} 1
`), "tandem_trace_spans_total", "tandem_trace_spans_made_total"); err != nil {
		t.Error(err)
	}
}

// A collector that is away, or takes no bytes, holds nobody up: spans go on being
// made, and the end comes with the deadline, without goroutines left behind.
func TestCollectorAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	for name, address := range map[string]string{"silent": silent.Addr().String(), "gone": gone.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			var log bytes.Buffer
			tracing, err := telemetry.NewTracing(telemetry.TracingConfig{Endpoint: address}, slog.New(slog.NewTextHandler(&log, nil)), nil)
			if err != nil {
				t.Fatal(err)
			}
			tracer := tracing.Tracer("tandem-router", "router-1")
			for range 3 * sdktrace.DefaultMaxQueueSize {
				_, span := tracer.Start(t.Context(), "work")
				span.End()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := tracing.Close(ctx); err == nil {
				t.Error("nothing was lost")
			} else if again := tracing.Close(ctx); !errors.Is(again, err) {
				t.Error("the second Close says something else")
			}
			if !strings.Contains(log.String(), "are lost") || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

// line is one of a trace file.
type line struct {
	ResourceSpans []struct {
		Resource   struct{ Attributes []attr }
		ScopeSpans []struct {
			Scope struct{ Name string }
			Spans []struct {
				TraceID, SpanID, ParentSpanID, Name string
				Kind                                int
				StartTimeUnixNano, EndTimeUnixNano  string
				Attributes                          []attr
				Events                              []struct {
					TimeUnixNano, Name string
					Attributes         []attr
				}
				Status struct {
					Code    int
					Message string
				}
			}
		}
	}
}

type attr struct {
	Key   string
	Value map[string]any
}

func lines(t *testing.T, name string) (out []line, bytes int) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(strings.NewReader(string(data)))
	scanner.Buffer(nil, len(data)+1)
	for scanner.Scan() {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, l)
	}
	return out, len(data)
}

func TestTraceFile(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=%E9")
	name := filepath.Join(t.TempDir(), "traces.jsonl")
	tracing, err := telemetry.NewTracing(telemetry.TracingConfig{File: name, FileBytes: 1 << 20}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	tracer := tracing.Tracer("tandem-router", "router-1")
	began := time.Unix(1_700_000_000, 123_456_789)
	ctx, root := tracer.Start(t.Context(), "root", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindServer))
	_, child := tracer.Start(ctx, "child", trace.WithTimestamp(began))
	child.SetAttributes(attribute.String("s", "text"), attribute.Bool("b", true), attribute.Int("i", 1<<62), attribute.Float64("f", 1.5), attribute.StringSlice("l", []string{"x", "y"}))
	child.AddEvent("token", trace.WithTimestamp(began.Add(1)), trace.WithAttributes(attribute.Int("offset", 64)))
	child.SetStatus(codes.Error, "WORKER_LOST")
	child.End(trace.WithTimestamp(began.Add(2)))
	root.End(trace.WithTimestamp(began.Add(3)))
	if err := tracing.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, _ := lines(t, name)
	if len(got) != 1 || len(got[0].ResourceSpans) != 1 || len(got[0].ResourceSpans[0].ScopeSpans[0].Spans) != 2 {
		t.Fatalf("got %+v", got)
	}
	spans := got[0].ResourceSpans[0].ScopeSpans[0].Spans
	if s := spans[0]; s.Name != "child" || s.Kind != 1 || s.ParentSpanID != spans[1].SpanID || s.SpanID != child.SpanContext().SpanID().String() || s.TraceID != root.SpanContext().TraceID().String() ||
		s.StartTimeUnixNano != "1700000000123456789" || s.EndTimeUnixNano != "1700000000123456791" || s.Status.Code != 2 || s.Status.Message != "WORKER_LOST" {
		t.Errorf("child: %+v", s)
	}
	want := `[{s map[stringValue:text]} {b map[boolValue:true]} {i map[intValue:4611686018427387904]} {f map[doubleValue:1.5]} {l map[arrayValue:map[values:[map[stringValue:x] map[stringValue:y]]]]}]`
	if fmt.Sprint(spans[0].Attributes) != want || fmt.Sprint(spans[0].Events) != "[{1700000000123456790 token [{offset map[intValue:64]}]}]" {
		t.Errorf("attributes %v, events %v", spans[0].Attributes, spans[0].Events)
	}
	if s := spans[1]; s.Kind != 2 || s.ParentSpanID != "" || s.Status.Code != 0 {
		t.Errorf("root: %+v", s)
	}
	for _, want := range []string{"{service.name map[stringValue:tandem-router]}", "{team map[stringValue:\uFFFD]}"} {
		if !strings.Contains(fmt.Sprint(got[0].ResourceSpans[0].Resource.Attributes), want) {
			t.Errorf("resource without %s: %v", want, got[0].ResourceSpans[0].Resource.Attributes)
		}
	}
}

// A full file whose name is gone is no end of tracing: the next one is opened.
func TestTraceFileThatIsGone(t *testing.T) {
	const most = 1 << 20
	name := filepath.Join(t.TempDir(), "traces.jsonl")
	registry := prometheus.NewRegistry()
	tracing, err := telemetry.NewTracing(telemetry.TracingConfig{File: name, FileBytes: most}, quiet, registry)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	tracer := tracing.Tracer("tandem-router", "router-1")
	text := strings.Repeat("x", 1000)
	for range 1500 {
		_, span := tracer.Start(t.Context(), "work", trace.WithAttributes(attribute.String("text", text)))
		span.End()
	}
	if err := tracing.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, bytes := lines(t, name); bytes > most || len(got) == 0 {
		t.Errorf("%d lines, %d bytes of %d", len(got), bytes, most)
	}
}

// The file and the one before it hold no more than they may, however much comes.
func TestTraceFileIsBounded(t *testing.T) {
	const most = 1 << 20
	name := filepath.Join(t.TempDir(), "traces.jsonl")
	for range 2 { // the second time it goes on where the first one ended
		tracing, err := telemetry.NewTracing(telemetry.TracingConfig{File: name, FileBytes: most}, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		tracer := tracing.Tracer("tandem-router", "router-1")
		text := strings.Repeat("x", 1000)
		for range 1200 {
			_, span := tracer.Start(t.Context(), "work", trace.WithAttributes(attribute.String("text", text)))
			span.End()
		}
		if err := tracing.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{name, name + ".1"} {
		if got, bytes := lines(t, file); bytes > most || len(got) == 0 {
			t.Errorf("%s: %d lines, %d bytes of %d", file, len(got), bytes, most)
		}
	}
	if _, err := telemetry.NewTracing(telemetry.TracingConfig{File: filepath.Join(name, "not-a-folder"), FileBytes: most}, quiet, nil); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
