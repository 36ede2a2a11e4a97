package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/bytesize"
)

// scope names what makes the spans.
const scope = "github.com/tandem-serving/tandem"

// TracingConfig says which requests are traced and where their spans go. With none of
// Endpoint, File and Exporter there is no tracing.
type TracingConfig struct {
	// Endpoint is a collector that speaks OTLP over gRPC: host:port for one
	// without TLS, or a URL of http:// or https://. "none" is none.
	Endpoint string
	// File gets spans as lines of OTLP's JSON.
	File string
	// FileBytes bounds the file; a full one is renamed to FILE.1, whose
	// predecessor is lost.
	FileBytes bytesize.Size
	// Share of the requests to trace whose callers say nothing, 0 to 1. Tenant lets spans
	// name the tenant. Both are for who begins traces.
	Share  float64
	Tenant bool
	// Exporter gets spans too; for tests. Tracing shuts it down.
	Exporter sdktrace.SpanExporter

	// variable of the environment that Endpoint is from; empty: the caller.
	variable string
}

// RegisterFlags adds the flags, with defaults that work.
func (c *TracingConfig) RegisterFlags(fs *pflag.FlagSet) {
	c.FileBytes = defaultTraceFileBytes
	fs.StringVar(&c.Endpoint, "trace-endpoint", "", "OTLP/gRPC address of a collector for OpenTelemetry spans, as host:port, or none (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
	fs.StringVar(&c.File, "trace-file", "", "file for OpenTelemetry spans, as lines of OTLP JSON; empty: none")
	fs.Var(&c.FileBytes, "trace-file-size", "size at which the trace file is renamed to FILE.1 and a new one begins")
	fs.Float64Var(&c.Share, "trace-sample", 0.01, "share of requests to trace, 0 to 1; a caller's traceparent overrides it")
	fs.BoolVar(&c.Tenant, "trace-tenant", false, "record the tenant of a request in its spans")
}

// Environment variables of OpenTelemetry that say where spans go.
const (
	envDisabled       = "OTEL_SDK_DISABLED"
	envEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// noEndpoint is an Endpoint that is none, whatever the environment says.
const noEndpoint = "none"

// FromEnvironment adds the endpoint that OpenTelemetry's variables name, if
// neither an endpoint nor a file is configured. OTEL_SDK_DISABLED=true turns
// everything off.
func (c TracingConfig) FromEnvironment(environment func(string) string) TracingConfig {
	if strings.EqualFold(environment(envDisabled), "true") {
		return TracingConfig{}
	}
	if c.Endpoint == noEndpoint {
		c.Endpoint = ""
		return c
	}
	for _, name := range []string{envTracesEndpoint, envEndpoint} {
		if endpoint := environment(name); endpoint != "" && c.Endpoint == "" && c.File == "" {
			c.Endpoint, c.variable = endpoint, name
		}
	}
	return c
}

// Validate says what is wrong with it.
func (c TracingConfig) Validate() error {
	if !(c.Share >= 0 && c.Share <= 1) { // so that NaN is refused too
		return fmt.Errorf("--trace-sample: %v is not a share: give 0 to 1, such as 0.01 for one request in a hundred", c.Share)
	}
	if _, err := endpointOptions(c.Endpoint); err != nil {
		if c.variable != "" {
			return fmt.Errorf("environment variable %s: %w", c.variable, err)
		}
		return fmt.Errorf("--trace-endpoint: %w", err)
	}
	if c.File != "" && c.FileBytes < minFileBytes {
		return fmt.Errorf("--trace-file-size: trace file: %d bytes are less than %d", c.FileBytes, minFileBytes)
	}
	return nil
}

// endpointOptions are the exporter's for an address.
func endpointOptions(address string) ([]otlptracegrpc.Option, error) {
	if address == "" || address == noEndpoint {
		return nil, nil
	}
	wrong := fmt.Errorf("trace endpoint %q is neither HOST:PORT nor a URL such as http://HOST:PORT: give the OTLP/gRPC port of a collector, often 4317", address)
	if strings.Contains(address, "://") {
		parsed, err := url.Parse(address)
		if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || strings.Trim(parsed.Path, "/") != "" {
			return nil, wrong
		}
		return []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(address)}, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return nil, wrong
	}
	return []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure()}, nil
}

// Tracing makes the tracers of a process's parts, which share its exporters. A
// nil *Tracing makes none.
//
// Spans wait for the exporters in bounded queues (OTEL_BSP_MAX_QUEUE_SIZE, 2048
// by default); what finds one full is lost. So nothing that ends a span waits
// for a collector. Each exporter has a goroutine, which Close ends. All methods
// are safe for concurrent use.
type Tracing struct {
	made    *prometheus.CounterVec
	outlets []*outlet
	queues  []sdktrace.SpanProcessor // one for each outlet
	close   sync.Once
	closed  error
}

// NewTracing starts the exporters; nil if there are none. That a collector does
// not answer is no error: its spans are lost until it does, and the log says so.
func NewTracing(cfg TracingConfig, log *slog.Logger, registerer prometheus.Registerer) (*Tracing, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if (cfg.Endpoint == "" || cfg.Endpoint == noEndpoint) && cfg.File == "" && cfg.Exporter == nil {
		return nil, nil
	}
	made, counts, err := newSpanCounts(registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	t := &Tracing{made: made}
	if cfg.Endpoint != "" && cfg.Endpoint != noEndpoint {
		options, err := endpointOptions(cfg.Endpoint)
		if err != nil {
			return nil, err
		}
		exporter, err := otlptracegrpc.New(context.Background(), options...) // connects later
		if err != nil {
			return nil, fmt.Errorf("trace endpoint %q: %w", cfg.Endpoint, err)
		}
		t.add(newOutlet("otlp", cfg.Endpoint, exporter, counts, log))
	}
	if cfg.File != "" {
		exporter, err := openTraceFile(cfg.File, int64(cfg.FileBytes))
		if err != nil {
			return nil, errors.Join(err, t.Close(context.Background()))
		}
		t.add(newOutlet("file", cfg.File, exporter, counts, log))
	}
	if cfg.Exporter != nil {
		t.add(newOutlet("other", "", cfg.Exporter, counts, log))
	}
	return t, nil
}

func (t *Tracing) add(o *outlet) {
	t.outlets = append(t.outlets, o)
	t.queues = append(t.queues, sdktrace.NewBatchSpanProcessor(o))
}

// readable is a resource without the bytes that are no UTF-8: no exporter would send a span of it.
func readable(r *resource.Resource) *resource.Resource {
	attributes := r.Attributes()
	for i, a := range attributes {
		if a.Value.Type() == attribute.STRING {
			attributes[i].Value = attribute.StringValue(strings.ToValidUTF8(a.Value.AsString(), "\uFFFD"))
		}
	}
	return resource.NewWithAttributes(r.SchemaURL(), attributes...)
}

// Tracer is the tracer of one part: service is like "tandem-router", instance
// the worker's id. Nil from a nil *Tracing.
//
// It records every span that has no parent or a sampled one: whoever starts a
// trace decides before, so that what is not sampled costs nothing.
func (t *Tracing) Tracer(service, instance string) trace.Tracer {
	if t == nil {
		return nil
	}
	// Attributes that OTEL_RESOURCE_ATTRIBUTES gives are kept; a part of it that
	// cannot be read is reported by no one else, and is no reason not to trace.
	from, _ := resource.New(context.Background(), resource.WithFromEnv(), resource.WithHost(), resource.WithTelemetrySDK())
	own := resource.NewSchemaless(
		attribute.String("service.namespace", "tandem"),
		attribute.String("service.name", service),
		attribute.String("service.instance.id", instance),
		attribute.String("service.version", ReadBuild().String()),
		attribute.Int("process.pid", os.Getpid()),
	)
	merged, err := resource.Merge(from, own)
	if err != nil {
		merged = own
	}
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(readable(merged)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
		sdktrace.WithSpanProcessor(counter{t.made.WithLabelValues(service)}),
	}
	for _, queue := range t.queues {
		options = append(options, sdktrace.WithSpanProcessor(queue))
	}
	return sdktrace.NewTracerProvider(options...).Tracer(scope, trace.WithInstrumentationVersion(ReadBuild().Version))
}

// cutTimeout is how long an export that was cut short may take to notice.
const cutTimeout = time.Second

// Close sends what waits, until ctx ends; what is left then is lost. It returns
// once the exporters' goroutines have ended; the error names what was lost. It
// does nothing for a nil *Tracing, and nothing the second time.
func (t *Tracing) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	t.close.Do(func() {
		var closing sync.WaitGroup
		errs := make([]error, len(t.outlets))
		for i, o := range t.outlets {
			closing.Go(func() { errs[i] = o.closeAfter(ctx, t.queues[i]) })
		}
		closing.Wait()
		t.closed = errors.Join(errs...)
	})
	return t.closed
}
